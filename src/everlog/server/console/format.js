// Numbers, sizes and times in words.

const grouped = new Intl.NumberFormat('en-US');
const short = new Intl.NumberFormat('en-US', { notation: 'compact', maximumFractionDigits: 1 });
const UNITS = ['B', 'kB', 'MB', 'GB', 'TB', 'PB'];

export const count = (value) => grouped.format(value);
export const compact = (value) => (Math.abs(value) < 10_000 ? grouped.format(Math.round(value)) : short.format(value));

/** A count with its noun: 1 record, 2 records. */
export const counted = (value, noun) => `${count(value)} ${noun}${value === 1 ? '' : 's'}`;

export function bytes(value) {
  let size = value;
  let unit = 0;
  while (size >= 1000 && unit < UNITS.length - 1) {
    size /= 1000;
    unit += 1;
  }
  return `${unit && size < 100 ? size.toFixed(1) : Math.round(size)} ${UNITS[unit]}`;
}

export function rate(value) {
  if (value > 0 && value < 10) return value.toFixed(1);
  return compact(value);
}

export function milliseconds(value) {
  if (value >= 1000) return duration(value);
  if (value >= 10 || value === 0) return `${Math.round(value)} ms`;
  return value >= 1 ? `${value.toFixed(1)} ms` : `${Math.round(value * 1000)} µs`;
}

/** A duration of milliseconds, in its two largest units. */
export function duration(value) {
  const seconds = Math.floor(value / 1000);
  const parts = [
    [Math.floor(seconds / 86_400), 'd'],
    [Math.floor(seconds / 3600) % 24, 'h'],
    [Math.floor(seconds / 60) % 60, 'min'],
    [seconds % 60, 's'],
  ];
  const first = parts.findIndex(([amount]) => amount > 0);
  if (first < 0) return '0 s';
  return parts.slice(first, first + 2).filter(([amount]) => amount > 0).map(([amount, unit]) => `${amount} ${unit}`).join(' ');
}

const two = (value) => String(value).padStart(2, '0');

/** The time of day of milliseconds since the epoch, where the browser is. */
export function clock(ms, withMillis = false) {
  const at = new Date(ms);
  const text = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  return withMillis ? `${text}.${String(at.getMilliseconds()).padStart(3, '0')}` : text;
}

/** Date and time. */
export function moment(ms) {
  if (ms === null || ms === undefined) return 'never';
  const at = new Date(ms);
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${clock(ms)}`;
}

export function ago(ms, now = Date.now()) {
  if (ms === null || ms === undefined) return 'never';
  return now - ms < 1000 ? 'just now' : `${duration(now - ms)} ago`;
}
