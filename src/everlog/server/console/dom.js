// Elements from data. Text is always text: nothing here, or anywhere in the console, turns a string into markup.

const CONTROL = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

/** Text in which characters that are invisible, or that turn text around, are shown as what they are. */
export function visible(text) {
  return String(text).replace(CONTROL, (char) => {
    const code = char.charCodeAt(0);
    return code < 0x20 ? String.fromCharCode(0x2400 + code) : `\\u${code.toString(16).padStart(4, '0')}`;
  });
}

/** An element with attributes, listeners (`onclick`) and children; strings become text. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (name === 'value') element.value = value;
    else element.setAttribute(name, value === true ? '' : String(value));
  }
  fill(element, ...children);
  return element;
}

/** Replace what is in an element. */
export function fill(element, ...children) {
  const nodes = children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
  element.replaceChildren(...nodes.map((child) => (child instanceof Node ? child : visible(child))));
  return element;
}

/** Set the text of an element, if it has changed. */
export function say(element, text) {
  const shown = visible(text);
  if (element.textContent !== shown) element.textContent = shown;
}

/** A page or a part of one: it works while it is shown, and `signal` ends what it has begun. */
export class Part extends HTMLElement {
  connectedCallback() {
    this.abort = new AbortController();
    this.signal = this.abort.signal;
    this.show();
  }

  disconnectedCallback() {
    this.abort.abort();
  }

  show() {}
}

/** An icon of the set below; it is decoration, the words beside it say the same. */
export function icon(name) {
  const svg = document.createElementNS('http://www.w3.org/2000/svg', 'svg');
  svg.setAttribute('viewBox', '0 0 16 16');
  svg.setAttribute('class', 'icon');
  svg.setAttribute('aria-hidden', 'true');
  const path = document.createElementNS('http://www.w3.org/2000/svg', 'path');
  path.setAttribute('d', ICONS[name]);
  svg.append(path);
  return svg;
}

const ICONS = {
  overview: 'M1.5 13.5h13M3 11l3-4 3 2.5L13 4',
  topics: 'M2.5 4h11M2.5 8h11M2.5 12h7',
  consumers: 'M8 7.5a2.7 2.7 0 1 0 0-5.4 2.7 2.7 0 0 0 0 5.4ZM2.8 14c.4-3 2.4-4.4 5.2-4.4s4.8 1.4 5.2 4.4',
  jobs: 'M2.5 5.5h11v8h-11zM5.5 5.5v-2h5v2M2.5 9h11',
  routers: 'M2 8h4M6 8c3 0 2-4.5 5-4.5h3M6 8c3 0 2 4.5 5 4.5h3M12.5 2l1.5 1.5L12.5 5M12.5 11l1.5 1.5-1.5 1.5',
  bus: 'M2.5 3.5h11v3h-11zM2.5 9.5h11v3h-11zM5 5h.01M5 11h.01',
  market: 'M3.5 3v10M3.5 5h2v5h-2M8 2v12M7 4.5h2v6H7M12.5 4v9M11.5 6h2v4h-2',
  pipeline: 'M2.5 4.5c0-1.1 2.5-2 5.5-2s5.5.9 5.5 2-2.5 2-5.5 2-5.5-.9-5.5-2ZM2.5 4.5v7c0 1.1 2.5 2 5.5 2s5.5-.9 5.5-2v-7M2.5 8c0 1.1 2.5 2 5.5 2s5.5-.9 5.5-2',
  sun: 'M8 11a3 3 0 1 0 0-6 3 3 0 0 0 0 6ZM8 1v1.5M8 13.5V15M1 8h1.5M13.5 8H15M3 3l1 1M12 12l1 1M13 3l-1 1M4 12l-1 1',
  copy: 'M5.5 5.5h8v8h-8zM3.5 10.5h-1v-8h8v1',
  close: 'M4 4l8 8M12 4l-8 8',
  back: 'M9.5 3.5L5 8l4.5 4.5',
};

/** A box that says that there is nothing, or what went wrong, and what can be done about it. */
export function notice(kind, title, text, ...more) {
  return h('div', { class: `notice ${kind}`, role: kind === 'error' ? 'alert' : 'status' }, h('strong', {}, title), text && h('p', {}, text), ...more);
}

/** A question with two answers; resolves to whether it was agreed to. */
export function confirmed(title, text, action) {
  return new Promise((resolve) => {
    const answer = (value) => {
      dialog.close();
      dialog.remove();
      resolve(value);
    };
    const dialog = h(
      'dialog',
      { 'aria-label': title, oncancel: (event) => (event.preventDefault(), answer(false)) },
      h('h2', {}, title),
      h('p', {}, text),
      h('div', { class: 'buttons' },
        h('button', { type: 'button', onclick: () => answer(false), autofocus: true }, 'Cancel'),
        h('button', { type: 'button', class: 'danger', onclick: () => answer(true) }, action)),
    );
    document.body.append(dialog);
    dialog.showModal();
  });
}

/** A short message that goes away by itself. */
export function toast(text, kind = 'done') {
  const shown = h('div', { class: `toast ${kind}`, role: kind === 'error' ? 'alert' : 'status' }, text);
  document.body.append(shown);
  setTimeout(() => shown.remove(), 6000);
}
