// Running, waiting, and rates over the last second.
import {duration, rate, count} from './format.js';

const byId = (id) => document.getElementById(id);
const kWindow = 1500;  // milliseconds
const kPause = 400;    // without a view

let views = [];  // of the window: what rates are made of
let idleTimer = 0;

const rates = (from, to) => {
  const seconds = (to.time_ms - from.time_ms) / 1000;
  if (seconds <= 0) return {prefill: 0, decode: 0, link: 0};
  return {
    prefill: (to.tokens.computed - from.tokens.computed) / seconds,
    decode: (to.tokens.generated - from.tokens.generated) / seconds,
    // Both directions run at once: the busier one is compared with the link's rate.
    link: Math.max(to.link.to_device - from.link.to_device, to.link.to_host - from.link.to_host) / seconds / 1e9,
  };
};

export function showNumbers(view) {
  const now = {time_ms: view.time_ms, tokens: view.tokens, link: view.link};
  // After a rest rates begin anew.
  const last = views.at(-1);
  if (last && now.time_ms - last.time_ms > kPause) views = [{...last, time_ms: now.time_ms - 100}];
  views.push(now);
  while (views.length > 2 && now.time_ms - views[0].time_ms > kWindow) views.shift();
  byId('n-running').textContent = count(view.running);
  byId('n-waiting').textContent = count(view.waiting);
  const {prefill, decode, link} = rates(views[0], now);
  byId('n-prefill').textContent = rate(prefill);
  byId('n-decode').textContent = rate(decode);
  byId('n-link-box').hidden = !view.kv.on_host;
  const bound = view.kv.link_bytes_per_second / 1e9;  // 0: `sluice doctor` has not measured it
  const ofBound = (text) => bound > 0 ? `${text} of ${rate(bound)}` : text;
  byId('n-link').textContent = ofBound(rate(link));
  clearTimeout(idleTimer);
  idleTimer = setTimeout(() => {
    // No view for this long: nothing runs.
    views = [now];
    byId('n-prefill').textContent = byId('n-decode').textContent = '0';
    byId('n-link').textContent = ofBound('0');
  }, kWindow);
}

export function showFirstToken(seconds) {
  byId('n-first').textContent = duration(seconds);
}
