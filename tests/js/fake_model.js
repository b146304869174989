// A widget's model as anywidget hands it over, without a kernel.
export class FakeModel {
  constructor(state = {}) {
    this.state = state;
    this.sent = [];
    this.saved = 0;
    this.listeners = new Map();
  }
  get(name) {
    return this.state[name];
  }
  set(name, value) {
    this.state[name] = value;
  }
  save_changes() {
    this.saved += 1;
  }
  send(content, _callbacks, buffers) {
    this.sent.push({ ...content, buffers });
  }
  on(name, callback) {
    this.listeners.set(name, [...(this.listeners.get(name) ?? []), callback]);
  }
  off(name, callback) {
    this.listeners.set(name, (this.listeners.get(name) ?? []).filter((c) => c !== callback));
  }
  /** Python sets traits. */
  change(state) {
    Object.assign(this.state, state);
    for (const name of Object.keys(state)) for (const c of this.listeners.get(`change:${name}`) ?? []) c();
  }
  /** Python sends a message. */
  hear(message, buffers = []) {
    for (const c of [...(this.listeners.get("msg:custom") ?? [])]) c(message, buffers);
  }
  types() {
    return this.sent.map((m) => m.type);
  }
}

export const tick = (milliseconds = 0) => new Promise((resolve) => setTimeout(resolve, milliseconds));

export const part = (root, name) => root.querySelector(`[data-hv="${name}"]`);
export const parts = (root, name) => [...root.querySelectorAll(`[data-hv="${name}"]`)];

export const press = (element, key, more = {}) => {
  const event = new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true, ...more });
  element.dispatchEvent(event);
  return event;
};
