// Numbers as people read them.
const whole = new Intl.NumberFormat('en');

export const count = (n) => whole.format(Math.round(n));

// Three digits that matter: 0.42, 7.31, 92.4, 1,234.
export function rate(n) {
  if (!Number.isFinite(n) || n <= 0) return '0';
  if (n < 9.995) return n.toFixed(2);
  if (n < 99.95) return n.toFixed(1);
  return count(n);
}

export function duration(seconds) {
  if (seconds < 0.0995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.round(seconds % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export function bytes(n) {
  const units = ['B', 'KB', 'MB', 'GB', 'TB'];
  let unit = 0;
  while (n >= 999.5 && unit < units.length - 1) {
    n /= 1000;
    ++unit;
  }
  return `${unit === 0 || n >= 99.5 ? Math.round(n) : n.toFixed(1)} ${units[unit]}`;
}
