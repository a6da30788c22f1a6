// Words in the language of the front end. English is in the code, others in locales/<language>/main.json.
let table = new Map();
let language = "en";

/** Takes {English: translation}; what is missing stays English. */
export function setWords(words, name = "en") {
  table = new Map(Object.entries(words ?? {}));
  language = name;
}

/** A number as people write it in that language. */
export const number = (value, digits, options = {}) =>
  value.toLocaleString(language, {
    minimumFractionDigits: digits,
    maximumFractionDigits: digits,
    ...options,
  });

/** The translation of an English text, with {0}, {1} ... filled in. */
export const t = (text, ...values) =>
  (table.get(text) ?? text).replace(/\{(\d)\}/g, (_, index) => values[index]);

/** The same for a count: `singular` for 1, else `plural` with the count as {0}. */
export const counted = (count, singular, plural) => t(count === 1 ? singular : plural, count);
