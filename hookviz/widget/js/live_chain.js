// @ts-check
// One frame under way at a time, the newest one wins, and a watchdog that no lost answer stops.

export const BUSY_AFTER = 1000;
export const GIVE_UP_AFTER = 5000;
const LOOK_BACK = 2000;

/**
 * Sends a frame: called with its number. What it raises, or rejects with, frees the way for the next.
 * @typedef {(seq: number) => void | Promise<void>} Make
 */

export class Chain {
  /**
   * @param {{busy: (on: boolean) => void, failed: (problem: unknown) => void, now?: () => number}} tell
   */
  constructor({ busy, failed, now = () => performance.now() }) {
    this.tellBusy = busy;
    this.tellFailed = failed;
    this.now = now;
    this.seq = 0;
    /** @type {{seq: number, at: number} | null} */
    this.flying = null;
    /** @type {Make | null} */
    this.waiting = null;
    this.isBusy = false;
    this.dropped = 0;
    this.late = 0;
    this.lost = 0;
    /** When answers came, and how long each took. @type {{at: number, delay: number}[]} */
    this.answers = [];
  }

  /** Begins to count anew. */
  reset() {
    this.dropped = this.late = this.lost = 0;
    this.answers = [];
  }

  /** A new frame: it takes the place of one that waits. @param {Make} make */
  offer(make) {
    if (this.waiting) this.dropped += 1;
    this.waiting = make;
    this.next();
  }

  /** Sends the frame that waits, where none is under way. */
  next() {
    if (this.flying || !this.waiting) return;
    const make = this.waiting;
    const seq = this.seq += 1;
    this.waiting = null;
    this.flying = { seq, at: this.now() };
    const free = (/** @type {unknown} */ problem) => {
      if (this.flying?.seq === seq) this.flying = null;
      this.tellFailed(problem);
    };
    try {
      Promise.resolve(make(seq)).catch(free);
    } catch (problem) {
      free(problem);
    }
  }

  /**
   * An answer has come: the way is free.
   * @param {number} seq
   * @returns {number | null} milliseconds that it took; null where nobody waits for it any more
   */
  answered(seq) {
    if (this.flying?.seq !== seq) {
      this.late += 1;
      return null;
    }
    const at = this.now();
    const delay = at - this.flying.at;
    this.flying = null;
    this.setBusy(false);
    this.answers.push({ at, delay });
    while (at - this.answers[0].at > LOOK_BACK) this.answers.shift();
    return delay;
  }

  /** Called a few times a second: says that the kernel is busy, and gives up what is lost. */
  look() {
    const age = this.flying ? this.now() - this.flying.at : 0;
    if (age > BUSY_AFTER) this.setBusy(true);
    if (age > GIVE_UP_AFTER) {
      this.flying = null;
      this.lost += 1;
      this.next();
    }
  }

  /** Forgets what waits and what is under way; answers to it are late. */
  stop() {
    this.flying = this.waiting = null;
    this.setBusy(false);
  }

  /** Frames in a second, over the last two. */
  get rate() {
    const [first] = this.answers;
    const last = this.answers[this.answers.length - 1];
    return first && last.at > first.at ? (1000 * (this.answers.length - 1)) / (last.at - first.at) : 0;
  }

  /** The median of the last delays, in milliseconds. */
  get delay() {
    const delays = this.answers.map(({ delay }) => delay).sort((a, b) => a - b);
    return delays[delays.length >> 1] ?? 0;
  }

  /** @param {boolean} on */
  setBusy(on) {
    if (on !== this.isBusy) this.tellBusy(on);
    this.isBusy = on;
  }
}
