// Words in the language of the front end. The English ones stand in the code, the others in locales/<language>/main.json.
let table = {};

/** Takes {English: words in another language}; what is not in it stays English. */
export function speak(words) {
  table = words ?? {};
}

/** The words for an English text, {0}, {1} ... filled in. */
export const t = (text, ...values) => (table[text] ?? text).replace(/\{(\d)\}/g, (_, place) => values[place]);

/** The same for a count: `one` for a single thing, else `many` with the count as {0}. */
export const counted = (count, one, many) => t(count === 1 ? one : many, count);
