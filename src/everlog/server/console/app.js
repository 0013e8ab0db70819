// The shell: navigation, the address of each page, the key, the theme, and whether the server answers.

import { connection, get, keyring } from './api.js';
import { fill, h, icon, notice, say } from './dom.js';
import { duration } from './format.js';
import './bus.js';
import './consumers.js';
import './jobs.js';
import './market.js';
import './overview.js';
import './pipeline.js';
import './routers.js';
import './topic.js';
import './topics.js';

const PAGES = [
  { path: 'overview', label: 'Overview', tag: 'ev-overview' },
  { path: 'topics', label: 'Topics', tag: 'ev-topics', one: 'ev-topic' },
  { path: 'consumers', label: 'Consumers', tag: 'ev-consumers' },
  { path: 'jobs', label: 'Jobs', tag: 'ev-jobs', one: 'ev-job-queue' },
  { path: 'routers', label: 'Routers', tag: 'ev-routers' },
  { path: 'bus', label: 'Queues', tag: 'ev-bus' },
  { path: 'market', label: 'Market', tag: 'ev-market' },
  { path: 'pipeline', label: 'Pipeline', tag: 'ev-pipeline' },
];
const THEMES = ['auto', 'light', 'dark'];
const THEME = 'everlog.theme';

/** The words of the address behind `#/`. */
function place() {
  return location.hash.replace(/^#\/?/, '').split('/').filter(Boolean).map((word) => {
    try {
      return decodeURIComponent(word);
    } catch {
      return word;
    }
  });
}

class Console extends HTMLElement {
  connectedCallback() {
    this.banner = h('div', { class: 'banner', role: 'status', hidden: true });
    this.main = h('main', { id: 'page', tabindex: -1 });
    this.nav = h('nav', { 'aria-label': 'Pages' }, PAGES.map((page) => h('a', { href: `#/${page.path}` }, icon(page.path), h('span', {}, page.label))));
    this.server = h('span', { class: 'server' }, location.host);
    this.themeButton = h('button', { type: 'button', class: 'quiet', onclick: () => this.nextTheme() });
    this.keyButton = h('button', { type: 'button', class: 'quiet', hidden: true, onclick: () => this.forgetKey() }, 'Forget the key');
    fill(this,
      h('a', { class: 'skip', href: '#page', onclick: (event) => (event.preventDefault(), this.main.focus()) }, 'Skip to the page'),
      h('aside', {},
        h('a', { class: 'brand', href: '#/overview' }, h('img', { src: '/console/icon.svg', alt: '', width: 24, height: 24 }), h('strong', {}, 'everlog')),
        this.nav,
        h('footer', {}, this.server, this.keyButton, this.themeButton)),
      h('div', { class: 'body' }, this.banner, this.main));
    keyring.prompt = (wasRefused) => this.askForKey(wasRefused);
    this.applyTheme(localStorage.getItem(THEME) ?? 'auto');
    connection.addEventListener('change', () => this.showConnection());
    setInterval(() => this.showConnection(), 1000);
    addEventListener('hashchange', () => this.open());
    addEventListener('keydown', (event) => this.shortcut(event));
    this.open();
  }

  open() {
    const [name = 'overview', ...rest] = place();
    const page = PAGES.find(({ path }) => path === name);
    for (const link of this.nav.children) {
      if (link.getAttribute('href') === `#/${name}`) {
        link.setAttribute('aria-current', 'page');
        link.scrollIntoView({ block: 'nearest', inline: 'center' });
      } else link.removeAttribute('aria-current');
    }
    const key = JSON.stringify([name, rest[0]]);
    if (page && this.shown === key && this.page?.moved) {
      this.page.moved(rest);
      return;
    }
    this.shown = key;
    document.title = `${page?.label ?? 'Not found'}${rest[0] ? `: ${rest[0]}` : ''} – everlog`;
    if (!page) {
      fill(this.main, h('div', { class: 'page-head' }, h('h1', {}, 'Not found')), notice('empty', 'There is no such page', `“${name}” is not a page of the console.`, h('a', { href: '#/overview' }, 'Go to the overview')));
      return;
    }
    this.page = document.createElement(rest.length && page.one ? page.one : page.tag);
    this.page.place = rest;
    fill(this.main, this.page);
  }

  /** g and a letter open a page, / goes to the search field, Escape closes what is opened beside a list. */
  shortcut(event) {
    if (event.key === 'Escape' && !event.target.closest?.('dialog, select')) this.main.querySelector('.detail:not([hidden]) header button[aria-label^="Close"]')?.click();
    const typing = event.target.closest?.('input, textarea, select, dialog');
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === '/') {
      const search = this.main.querySelector('input[type=search]');
      if (search) {
        event.preventDefault();
        search.focus();
      }
    } else if (this.going) {
      const page = PAGES.find(({ label }) => label.toLowerCase().startsWith(event.key));
      if (page) location.hash = `#/${page.path}`;
    }
    this.going = event.key === 'g';
  }

  showConnection() {
    const { state, since, progress } = connection;
    this.banner.hidden = state === 'online';
    this.keyButton.hidden = !keyring.has();
    if (state === 'online') return;
    this.banner.className = `banner ${state}`;
    const seconds = duration(Date.now() - since);
    say(this.banner, state === 'recovering'
      ? `The server replays its log: ${Math.round(progress * 100)} %. The page goes on when it is ready.`
      : `No answer from ${location.host} for ${seconds}. Reconnecting; what is shown may be old.`);
    if (this.probing) return;
    this.probing = true;
    get('/overview').catch(() => {}).finally(() => (this.probing = false));
  }

  askForKey(wasRefused) {
    return new Promise((resolve) => {
      const input = h('input', { type: 'password', id: 'key', autocomplete: 'off', required: true, autofocus: true, spellcheck: 'false' });
      const form = h('form', {
        method: 'dialog',
        onsubmit: (event) => {
          event.preventDefault();
          const key = input.value.trim();
          if (!key || !/^[\x21-\x7e]+$/.test(key)) {
            say(hint, 'A key has only visible ASCII characters.');
            return;
          }
          isAnswered = true;
          dialog.close();
          dialog.remove();
          resolve(key);
        },
      },
      h('h2', {}, 'This server needs a key'),
      h('p', {}, wasRefused ? 'The key was refused: it is not one of the server’s, or it has expired. Enter another one.' : 'It is kept in this tab until you close it, and sent to this server only.'),
      h('label', { for: 'key' }, 'Key'), input);
      const hint = h('p', { class: 'problem', role: 'alert' });
      form.append(hint, h('div', { class: 'buttons' }, h('button', { class: 'primary' }, 'Continue')));
      let isAnswered = false;
      // A browser closes a dialog at the second Escape, whatever the page says; there is nothing to see without a key.
      const dialog = h('dialog', { class: 'key', 'aria-label': 'Key', oncancel: (event) => event.preventDefault(), onclose: () => isAnswered || dialog.showModal() }, form);
      document.body.append(dialog);
      dialog.showModal();
    });
  }

  forgetKey() {
    keyring.forget();
    this.shown = '';
    this.open();
  }

  nextTheme() {
    this.applyTheme(THEMES[(THEMES.indexOf(this.theme) + 1) % THEMES.length]);
    localStorage.setItem(THEME, this.theme);
  }

  applyTheme(theme) {
    this.theme = THEMES.includes(theme) ? theme : 'auto';
    document.documentElement.dataset.theme = this.theme;
    const label = { auto: 'Theme: system', light: 'Theme: light', dark: 'Theme: dark' }[this.theme];
    fill(this.themeButton, icon('sun'), h('span', {}, label));
    dispatchEvent(new Event('resize'));
  }
}

customElements.define('everlog-console', Console);
