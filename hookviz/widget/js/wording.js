// @ts-check
// The app's own words for what the library says. A sentence of the library names arguments and
// functions, as its users write Python; the app has controls. Whatever differs is told by the
// fault's code (see HookvizError) and is said anew here, and nowhere else: no sentence is searched.

/** @typedef {{label: string, do: string}} Action */
/** @typedef {{message: string, remedy?: string, actions?: Action[]}} Words */

const FILE = { label: "Choose a file", do: "choose-file" };
const UNTRAINED = { label: "Load it untrained", do: "untrained" };

/** By code: what is said in place of the library's message, remedy or both, and what can be done.
 * @type {Record<string, (named: Record<string, string>) => Partial<Words>>} */
const WORDS = {
  "no-such-channel": ({ channel, last, noun }) => ({ message: `This layer has the ${noun}s 0 to ${last}, not ${channel}.`, remedy: "" }),
  "not-channels": ({ text }) => ({ message: text ? `“${text}” is not a channel.` : "A channel is missing between the commas.",
    remedy: "Write for example 0-15,42." }),
  "empty-range": ({ low, high }) => ({ message: `The lowest value, ${low}, must be below the highest, ${high}.`, remedy: "" }),
  "all-dead": ({ noun }) => ({ message: `Each ${noun} is zero everywhere, and dead ${noun}s are hidden.`, remedy: "",
    actions: [{ label: "Show dead channels", do: "show-dead" }] }),
  "no-filters": () => ({ remedy: "" }),
  "page-too-large": () => ({ remedy: "Choose fewer maps per page." }),
  "overlay-needs-maps": () => ({ message: "These values have no place on the image, so they are drawn without it.", remedy: "" }),
  "download-failed": ({ file, folder, url }) => ({ remedy: `You can also get ${url} elsewhere and put it into ${folder} as ${file}.`,
    actions: [{ label: "Try again", do: "retry" }, FILE, UNTRAINED] }),
  "not-plain-weights": () => ({ remedy: "Save the weights alone in the program that made the file, then choose that file.", actions: [FILE] }),
  "architecture-unknown": () => ({ remedy: "Choose its model in the list, then this file as its weights." }),
  "weights-mismatch": ({ advice }) => ({ remedy: advice || "Choose the model that it was trained with.", actions: [FILE] }),
  "no-weights": () => ({ remedy: "", actions: [FILE, UNTRAINED] }),
  "out-of-memory": () => ({ remedy: "Tick fewer layers, or use a smaller image." }),
  "size-unknown": () => ({ actions: [{ label: "Set the size of the input", do: "own-size" }] }),
  "no-receptive-field": () => ({ remedy: "" }),
  "no-such-method": () => ({}),
  "no-such-query": () => ({ remedy: "" }),
  "no-such-class": ({ closest }) => (closest && closest !== "[]" ? {} : { remedy: "Type a class by its number, from 0." }),
  "no-classes": () => ({ remedy: "Type as the target for example “channel 0 of” and the name of a later layer." }),
  "no-gradient": () => ({ remedy: "Score-CAM, Ablation-CAM and occlusion need no gradient." }),
  "no-places": () => ({ remedy: "Tick a layer whose outputs have places." }),
  "no-relu": () => ({ remedy: "Choose another method." }),
  "layer-after-target": () => ({ remedy: "Untick that layer, or choose a later target." }),
  "captum-missing": () => ({ remedy: "Install it with pip install 'hookviz[explain]', then restart the kernel." }),
  "no-region": () => ({ message: "Where the network's input lies in the photo is not known: the preprocessing is of your own.", remedy: "" }),
  "new-images": () => ({ remedy: "", actions: [{ label: "Survey them too", do: "more-images" }] }),
  "too-many-unreadable": ({ bad, images, first }) => ({ message: `${bad} of ${images} images cannot be read so far, so the survey ended; what is done is kept. The first: ${first}`,
    remedy: "Mend or remove them, and survey into another folder." }),
  "batch-too-large": ({ fits }) => ({ remedy: Number(fits) ? `${fits} images at a time fit: set that, and survey into another folder.` : "Use smaller images or fewer layers." }),
  "image-size": ({ width, height }) => ({ remedy: "",
    actions: [{ label: `Use ${width} × ${height} pixels`, do: `size ${height} ${width}` }] }),
};

/**
 * What the app says of a fault.
 * @param {Record<string, any>} fault message, remedy, and where there are any code, details, action
 * @returns {Words}
 */
export function worded({ message, remedy, code, details, action }) {
  const own = WORDS[code]?.(details ?? {}) ?? {};
  return { message, remedy, ...own, actions: [...(action ? [action] : []), ...(own.actions ?? [])] };
}

/**
 * The same as one text.
 * @param {Record<string, any>} fault
 */
export function sentence(fault) {
  const { message, remedy } = worded(fault);
  return [message, remedy].filter(Boolean).join(" ");
}

/**
 * What is to be known of a model's weights.
 * @param {Record<string, any>} info note, and where layers are missing the megabytes of the full weights
 * @returns {Words}
 */
export function modelWords({ note, partial }) {
  if (!partial) return { message: note ?? "" };
  return { message: "These are the model's convolutions alone: it has no classifier, so there are no predictions.",
    actions: [{ label: `Download the full model (${Math.round(partial)} MB)`, do: "download-full" }] };
}

/** Where weights are from, as LoadedModel.weights says it. @type {Record<string, string>} */
const WEIGHTS = { "as passed in": "your own module", "state dict": "your own weights", none: "" };

/** @param {string} weights */
export function weightsText(weights) {
  return WEIGHTS[weights] ?? weights;
}

const SIDES = ["left", "top", "right", "bottom"];

/**
 * What is said of a receptive field.
 * @param {any} field
 * @returns {string}
 */
export function fieldText(field) {
  if (!field?.state) return "";
  if (field.state === "looking") return "Finding out what it sees …";
  if (field.state === "none") return sentence(field);
  const [high, wide] = field.size;
  const past = SIDES.map((side, i) => (field.beyond[i] ? `${field.beyond[i]} past its ${side} edge` : "")).filter(Boolean);
  const sees = field.whole && field.note.startsWith("The whole image") ? "" : `Sees ${wide} × ${high} pixels of the input${past.length ? `, ${past.join(", ")}` : ""}.`;
  return [sees, field.note].filter(Boolean).join(" ");
}

/** @param {string | null | undefined} text a value as Python writes it */
export const shownNumber = (text) => (text ?? "").replaceAll("-", "−");

/**
 * What is said of a place.
 * @param {any} answer
 */
export function answerText(answer) {
  if (answer.which) return `${answer.which === "seen" ? "input" : "photo"} · y ${answer.y}, x ${answer.x} · ${(answer.values ?? []).map(shownNumber).join(", ")}`;
  const rank = answer.rank ? ` · rank ${answer.rank} of ${answer.of}` : "";
  return `channel ${answer.channel} · y ${answer.y}, x ${answer.x} · ${shownNumber(answer.value) || "…"}${rank}`;
}
