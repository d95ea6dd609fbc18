// One question and its answer, as they are shown.
import {copyButton, make, makeButton} from './elements.js';
import {MarkdownView} from './markdown.js';

export class TurnView {
  // `actions`: {again, edit}, called with the turn.
  constructor(list, turn, actions) {
    this.turn = turn;
    this.element = make('li', 'turn');
    this.thought = make('details', 'thought');
    this.thoughtText = make('div');
    this.thought.append(make('summary', '', 'Thoughts'), this.thoughtText);
    this.answer = make('div', 'answer');
    this.markdown = new MarkdownView(this.answer);
    this.meta = make('p', 'meta');
    this.actions = make('p', 'turn-actions');
    this.actions.append(copyButton('Copy the answer', () => turn.answer),
                        makeButton('Regenerate', () => actions.again(turn), 'quiet again'),
                        makeButton('Edit', () => actions.edit(turn)));
    this.actions.lastChild.setAttribute('aria-label', 'Edit the question');
    this.element.append(make('p', 'asked', turn.question), this.thought, this.answer, this.meta, this.actions);
    list.append(this.element);
    this.frame = 0;
    this.costMs = 0;  // of the last drawing
    this.finish();
  }

  begin() {
    this.element.classList.add('busy');
    this.answer.setAttribute('aria-busy', 'true');
    this.actions.hidden = true;
  }

  // Soon, once for all that has come until then: a long paragraph may take no more than a quarter
  // of the time. `drawn` is called after that.
  showSoon(drawn) {
    if (this.frame !== 0) return;
    this.frame = setTimeout(() => {
      this.frame = 0;
      const begin = performance.now();
      this.thought.hidden = this.turn.thought === '';
      this.thoughtText.textContent = this.turn.thought;
      this.markdown.show(this.turn.answer);
      drawn();
      this.costMs = performance.now() - begin;
    }, Math.max(40, 3 * this.costMs));
  }

  say(text, isError = false) {
    this.meta.textContent = text;
    this.meta.classList.toggle('error', isError);
  }

  finish() {
    clearTimeout(this.frame);
    this.frame = 0;
    this.element.classList.remove('busy');
    this.answer.removeAttribute('aria-busy');
    this.actions.hidden = false;
    this.actions.firstChild.hidden = this.turn.answer === '';
    this.thought.hidden = this.turn.thought === '';
    this.thoughtText.textContent = this.turn.thought;
    this.markdown.finish(this.turn.answer);
    this.say(this.turn.note, this.turn.isError);
  }
}
