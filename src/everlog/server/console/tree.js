// JSON as a tree whose branches are made when they are opened. Numbers are shown with every digit they were sent with.

import { h, visible } from './dom.js';
import { count } from './format.js';

const CHILDREN = 100;
const TEXT_MAX = 2000;

/** A number whose digits do not fit in one of JavaScript's. */
class Exact {
  constructor(source) {
    this.source = source;
  }

  toJSON() {
    return JSON.rawJSON ? JSON.rawJSON(this.source) : Number(this.source);
  }
}

/** Read JSON without losing digits, where the browser tells them. */
export function parseExactly(text) {
  return JSON.parse(text, (_, value, context) => (typeof value === 'number' && context?.source && String(value) !== context.source ? new Exact(context.source) : value));
}

function scalar(value) {
  if (value instanceof Exact) return h('span', { class: 'number' }, value.source);
  if (typeof value === 'string') return longText(value);
  return h('span', { class: value === null ? 'null' : typeof value }, String(value));
}

function longText(value) {
  const quoted = (text) => visible(JSON.stringify(text));
  if (value.length <= TEXT_MAX) return h('span', { class: 'string' }, quoted(value));
  const more = h('button', { type: 'button', class: 'more', onclick: () => all.replaceChildren(quoted(value)) }, `show all ${count(value.length)} characters`);
  const all = h('span', { class: 'string' }, quoted(value.slice(0, TEXT_MAX)), '… ', more);
  return all;
}

const isBranch = (value) => value !== null && typeof value === 'object' && !(value instanceof Exact);

function children(list, entries, from) {
  for (const [key, value] of entries.slice(from, from + CHILDREN)) list.append(h('li', {}, node(key, value)));
  const left = entries.length - from - CHILDREN;
  if (left <= 0) return;
  const more = h('button', { type: 'button', class: 'more', onclick: () => (item.remove(), children(list, entries, from + CHILDREN)) }, `${count(left)} more`);
  const item = h('li', {}, more);
  list.append(item);
}

function node(key, value, isOpen = false) {
  const name = key === null ? [] : [h('span', { class: 'key' }, visible(key)), ': '];
  if (!isBranch(value)) return h('span', { class: 'leaf' }, name, scalar(value));
  const entries = Object.entries(value);
  const words = Array.isArray(value) ? `[ ${count(entries.length)} ]` : `{ ${count(entries.length)} }`;
  const list = h('ul', {});
  const details = h('details', { open: isOpen }, h('summary', {}, name, h('span', { class: 'faint' }, words)), list);
  const grow = () => {
    if (details.open && list.childElementCount === 0) children(list, entries, 0);
  };
  details.addEventListener('toggle', grow);
  grow();
  return details;
}

/** The tree of a value, its first branch open. */
export function tree(value) {
  return h('div', { class: 'tree' }, node(null, value, true));
}
