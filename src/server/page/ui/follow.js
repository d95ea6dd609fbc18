// The window follows an answer that grows, until the reader scrolls up.
import {byId} from './elements.js';

const composer = byId('composer');
let isFollowing = false;
let lastTop = 0;

// How far the end of an element is below the composer, which stays at the window's lower edge.
const below = (element) =>
    element.getBoundingClientRect().bottom - (window.innerHeight - composer.offsetHeight - 8);

// A page that became shorter also moves the window.
const isAtEnd = () =>
    window.scrollY + window.innerHeight >= document.documentElement.scrollHeight - 2;

// A scroll upwards may begin with steps of one pixel, after which the end is still near: only one
// downwards begins to follow again.
function look() {
  const last = byId('messages').lastElementChild;
  if (window.scrollY < lastTop - 4 && !isAtEnd()) isFollowing = false;
  else if (window.scrollY > lastTop && last !== null && Math.abs(below(last)) < 24) isFollowing = true;
  lastTop = window.scrollY;
}

export function startFollowing(element) {
  isFollowing = true;
  lastTop = window.scrollY;
  follow(element);
}

export function follow(element) {
  if (window.scrollY < lastTop - 4) look();  // the event of it comes later
  if (!isFollowing) return;
  const away = below(element);
  if (away > 0) window.scrollBy({top: away, behavior: 'instant'});
  lastTop = window.scrollY;
}

window.addEventListener('scroll', look, {passive: true});
window.addEventListener('wheel', (event) => {
  if (event.deltaY < 0) isFollowing = false;
}, {passive: true});
