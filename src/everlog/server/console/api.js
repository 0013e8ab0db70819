// The public API of the server, with the key of this browser tab; the console uses nothing else.

const KEY = 'everlog.key';
const RETRY_MS = [500, 1000, 2000, 4000];

/** What the server refused, and why. */
export class ApiError extends Error {
  constructor(status, code, message, detail) {
    super(message);
    this.status = status;
    this.code = code;
    this.detail = detail;
  }
}

/** The server cannot be reached, or is not ready. */
export class Unreachable extends Error {}

/** Whether the server answers: `state` is online, offline or recovering; an event tells each change. */
class Connection extends EventTarget {
  state = 'online';
  since = Date.now();
  progress = 0;

  set(state, progress = 0) {
    if (state === this.state && progress === this.progress) return;
    if (state !== this.state) this.since = Date.now();
    this.state = state;
    this.progress = progress;
    this.dispatchEvent(new Event('change'));
  }
}

export const connection = new Connection();

/** Asks for a key when one is needed; the shell puts its dialog here. */
export const keyring = {
  prompt: () => Promise.reject(new Error('no dialog')),
  asking: null,
  has: () => sessionStorage.getItem(KEY) !== null,
  forget: () => sessionStorage.removeItem(KEY),
};

/** Wait for a key that is not the refused one; all requests wait for the same dialog. */
async function anotherKey(refused) {
  if (sessionStorage.getItem(KEY) !== refused) return;
  keyring.asking ??= keyring.prompt(refused !== null).then((key) => {
    sessionStorage.setItem(KEY, key);
    keyring.asking = null;
  });
  await keyring.asking;
}

/** Path of a name: names of topics may hold characters that mean something in a URL. */
export const at = (...names) => names.map((name) => `/${encodeURIComponent(name)}`).join('');

async function answerOf(response) {
  const text = await response.text();
  if (response.ok) return text;
  let error = {};
  try {
    error = JSON.parse(text).error ?? {};
  } catch {
    // Not from everlog: a proxy in between, perhaps.
  }
  if (error.code === 'not_ready') {
    connection.set('recovering', error.detail?.replay_progress ?? 0);
    throw new Unreachable('the server replays its log');
  }
  if (error.code === 'shutting_down' || response.status === 502 || response.status === 504) {
    connection.set('offline');
    throw new Unreachable('the server is stopping');
  }
  throw new ApiError(response.status, error.code ?? 'unknown', error.message ?? `status ${response.status}`, error.detail ?? {});
}

/** Send a request and return the text of the answer; asks for a key if the server wants one. */
export async function askText(method, path, body, signal) {
  for (;;) {
    const key = sessionStorage.getItem(KEY);
    const headers = { Accept: 'application/json' };
    if (key !== null) headers.Authorization = `Bearer ${key}`;
    let target = `/v0${path}`;
    if (body !== undefined) {
      headers['Content-Type'] = 'application/json';
      target += `${path.includes('?') ? '&' : '?'}strict=true`;
    }
    let response;
    try {
      response = await fetch(target, { method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body), cache: 'no-store' });
    } catch (error) {
      if (signal?.aborted) throw error;
      connection.set('offline');
      throw new Unreachable('the server does not answer');
    }
    if (response.status === 401) {
      await anotherKey(key);
      continue;
    }
    try {
      const text = await answerOf(response);
      connection.set('online');
      return text;
    } catch (error) {
      if (error instanceof ApiError) connection.set('online');
      else if (!(error instanceof Unreachable) && !signal?.aborted) {
        connection.set('offline');
        throw new Unreachable('the connection was lost');
      }
      throw error;
    }
  }
}

export async function ask(method, path, body, signal) {
  return JSON.parse(await askText(method, path, body, signal));
}

export const get = (path, signal) => ask('GET', path, undefined, signal);

/** Wait; ends early when the signal does. */
export function pause(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(done, ms);
    function done() {
      clearTimeout(timer);
      signal?.removeEventListener('abort', done);
      resolve();
    }
    signal?.addEventListener('abort', done);
  });
}

function untilVisible(signal) {
  if (!document.hidden) return Promise.resolve();
  return new Promise((resolve) => {
    const look = () => {
      if (document.hidden && !signal.aborted) return;
      document.removeEventListener('visibilitychange', look);
      resolve();
    };
    document.addEventListener('visibilitychange', look);
    signal.addEventListener('abort', look);
  });
}

/** Do something again and again while a part is shown; errors of the server go to `failed`, others to the banner. */
export async function repeat(step, interval, signal, failed) {
  let failures = 0;
  while (!signal.aborted) {
    let wait = typeof interval === 'function' ? interval() : interval;
    try {
      await step();
      failures = 0;
    } catch (error) {
      if (signal.aborted) return;
      if (!(error instanceof Unreachable)) {
        if (!(error instanceof ApiError)) console.error(error);
        failed?.(error);
      }
      wait = Math.max(wait, RETRY_MS[Math.min(failures, RETRY_MS.length - 1)]);
      failures += 1;
    }
    await pause(wait, signal);
    await untilVisible(signal);
  }
}

/** All entries of a list that comes in pages, at most `max`; `seen` is called after each page. */
export async function pages(path, member, signal, max = 100_000, seen) {
  const entries = [];
  let cursor;
  do {
    const join = path.includes('?') ? '&' : '?';
    const page = await get(`${path}${join}page_size=1000${cursor ? `&cursor=${encodeURIComponent(cursor)}` : ''}`, signal);
    entries.push(...page[member]);
    cursor = page.next_cursor;
    seen?.(entries, cursor === undefined);
  } while (cursor && entries.length < max);
  return entries;
}
