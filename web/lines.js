// A concept list as text. The text is all that is saved, so an edit changes one line and leaves the others
// alone. The server decides how a line is read; `guess` fills chips and forms until its answer comes.

export const OFF = "# off: ";
const COMMENT = /\s#[^]*$/;
const ARROW = /->|→/;
const TAIL = /\s*(->|→|\|\||\s#|$)/;
const KIND = /\|\|\s*([A-Za-z]+)\s*$/;
const STRENGTH = /\|\|\s*(\d+\.?\d*|\.\d+)\s*$/;

/** [{raw, end}]: the lines and their line ends; joined, they are the text again. */
export function split(text) {
  const lines = [];
  for (const [match, raw, end] of text.matchAll(/([^\r\n]*)(\r\n|\r|\n|$)/g)) {
    if (match || !lines.length || lines.at(-1).end) lines.push({ raw, end });
    if (!end) break;
  }
  return lines;
}

export const join = (lines) => lines.map(({ raw, end }) => raw + end).join("");

/** blank, note (a comment), off (a concept that is switched off) or concept. */
export function lineType(raw) {
  const off = raw.startsWith(OFF);
  const line = (off ? raw.slice(OFF.length) : raw).trim();
  if (!line) return "blank";
  if (line.startsWith("#")) return "note";
  return off ? "off" : "concept";
}

/** What a line with a concept seems to mean: {off, target, aliases, anchor, kind, strength, comment}. */
export function guess(raw) {
  const off = raw.startsWith(OFF);
  const line = off ? raw.slice(OFF.length) : raw;
  const comment = line.match(COMMENT)?.[0] ?? "";
  let body = line.slice(0, line.length - comment.length);
  const strength = body.match(STRENGTH);
  if (strength) body = body.slice(0, strength.index);
  const kind = body.match(KIND);
  if (kind) body = body.slice(0, kind.index);
  const [names, ...anchors] = body.split(ARROW);
  const [target, ...aliases] = names.split("|").map((name) => name.trim());
  const anchor = anchors.length ? anchors.join("->").trim() : null;
  const share = strength ? Number(strength[1]) : 1;
  return {
    off,
    target,
    aliases,
    anchor,
    kind: kind ? kind[1].toLowerCase() : null,
    strength: share,
    comment,
  };
}

/** The line for these fields. An `anchor` of null is up to the kind; "" leaves the name out of the prompt. */
export function write(fields) {
  const {
    off = false,
    target,
    aliases = [],
    anchor = null,
    kind = null,
    strength = 1,
    comment = "",
  } = fields;
  const names = [target, ...aliases].map((name) => name.trim()).filter(Boolean);
  const arrow = anchor === null ? "" : ` -> ${anchor.trim()}`.trimEnd();
  const marks = [kind, Number(strength) === 1 ? "" : strength].filter(Boolean).map((mark) => ` || ${mark}`);
  return (off ? OFF : "") + names.join(" | ") + arrow + marks.join("") + comment;
}

export function replace(text, index, raw) {
  const lines = split(text);
  lines[index] = { ...lines[index], raw };
  return join(lines);
}

export function remove(text, index) {
  const lines = split(text);
  const [removed] = lines.splice(index, 1);
  if (index === lines.length && index > 0) lines[index - 1].end = removed.end;
  return join(lines);
}

/** Moves the line at `from` to `to`; line ends stay where they are. */
export function move(text, from, to) {
  const lines = split(text);
  if (from === to || !lines[from] || !lines[to]) return text;
  const raws = lines.map(({ raw }) => raw);
  raws.splice(to, 0, ...raws.splice(from, 1));
  return join(lines.map(({ end }, index) => ({ raw: raws[index], end })));
}

export function add(text, raws) {
  const start = text && !/[\r\n]$/.test(text) ? text + "\n" : text;
  return start + raws.join("\n");
}

export const toggle = (raw) => (raw.startsWith(OFF) ? raw.slice(OFF.length) : OFF + raw);

/** Inserts aliases after the names of a line; everything else in the line stays as it is. */
export function addAliases(raw, aliases) {
  const end = raw.search(TAIL);
  return raw.slice(0, end) + aliases.map((alias) => ` | ${alias}`).join("") + raw.slice(end);
}

/** Rows of a table, with quotes as spreadsheets write them. */
export function rows(text, separator) {
  const table = [[""]];
  let quoted = false;
  for (let i = 0; i < text.length; i++) {
    const letter = text[i];
    const row = table.at(-1);
    if (quoted) {
      if (letter === '"' && text[i + 1] === '"') row[row.length - 1] += text[++i];
      else if (letter === '"') quoted = false;
      else row[row.length - 1] += letter;
    } else if (letter === '"' && row.at(-1) === "") quoted = true;
    else if (letter === separator) row.push("");
    else if (letter === "\n") table.push([""]);
    else if (letter !== "\r") row[row.length - 1] += letter;
  }
  return table.filter((row) => row.some((cell) => cell.trim()));
}

const HEADINGS = /^(targets?|concepts?|names?|artists?|painters?|styles?|characters?|persons?|objects?)$/i;
const BECOMES = ["becomes", "replacement", "replace with", "to"];

const isHeading = (cell) => HEADINGS.test(cell.trim());

/**
 * Lines from one typed line: commas separate names. A comma in quotes or after a backslash is part of a name.
 * What follows the names (an arrow, a kind, a comment) goes with each of them.
 */
export function namesFrom(line) {
  const end = line.search(TAIL);
  const rest = line.slice(end);
  const names = [""];
  let quoted = false;
  const head = line.slice(0, end);
  for (let i = 0; i < head.length; i++) {
    const atStart = !names.at(-1).trim();
    if (head[i] === "\\" && head[i + 1] === ",") names[names.length - 1] += head[++i];
    else if (head[i] === '"' && (quoted || (atStart && head.indexOf('"', i + 1) > 0))) quoted = !quoted;
    else if (!quoted && /[,，、]/.test(head[i])) names.push("");
    else names[names.length - 1] += head[i];
  }
  return names
    .map((name) => name.trim())
    .filter(Boolean)
    .map((name) => name + rest);
}

/** The first concept's target and first alias; empty if there is none. */
export function firstNames(text) {
  const line = split(text).find(({ raw }) => lineType(raw) === "concept");
  if (!line) return [];
  const { target, aliases } = guess(line.raw);
  return [target, ...aliases.slice(0, 1)];
}

/** A prompt with the first of these names that it has replaced by its counterpart. */
export function rename(prompt, names, newNames) {
  for (const [index, name] of names.entries()) {
    if (name && prompt.includes(name)) return prompt.replaceAll(name, newNames[index] ?? newNames[0]);
  }
  return prompt;
}

/** Lines from pasted or dropped text: a list, a column, or a table with a heading. */
export function linesFrom(text, fileName = "") {
  const plain = text.replace(/^\ufeff/, "");
  const lines = plain.split(/\r\n|\r|\n/);
  const isTable = /\.(csv|tsv)$/i.test(fileName) || plain.includes("\t");
  if (!isTable) {
    const names = lines.map((line) => line.trim()).filter(Boolean);
    return names.length > 1 && isHeading(names[0]) ? names.slice(1) : names;
  }
  const table = rows(plain, [..."\t;,"].find((separator) => lines[0].includes(separator)) ?? ",");
  const heading = table[0].map((cell) => cell.trim().toLowerCase());
  const named = heading.findIndex(isHeading);
  const column = (name) => {
    if (named < 0) return ["target", "anchor"].indexOf(name);
    if (name === "target") return named;
    return heading.findIndex((title) => title === name || (name === "anchor" && BECOMES.includes(title)));
  };
  const cell = (row, name) => (row[column(name)] ?? "").trim();
  return table
    .slice(named < 0 ? 0 : 1)
    .filter((row) => cell(row, "target"))
    .map((row) =>
      write({
        target: cell(row, "target"),
        aliases: cell(row, "aliases").split("|"),
        anchor: cell(row, "anchor") || null,
        kind: cell(row, "kind").toLowerCase() || null,
        strength: cell(row, "strength") || 1,
      }),
    );
}

/** A word for a POSIX shell. What starts with a dash is quoted as well, and stays one word after its flag. */
export function quote(value) {
  const text = String(value);
  return /^[\w./:=,@%+-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`;
}

/** The same erasure for a terminal. Settings at their defaults are left out. */
export function commandLine({ checkpoint, text, kind, retainSets, hasRetainText, settings, defaults }) {
  const words = ["speed-erase", "erase", quote(checkpoint)];
  // A value that starts with a dash would be read as another flag.
  const flag = (name, value) => {
    if (String(value).startsWith("-")) words.push(`--${name}=${quote(value)}`);
    else words.push(`--${name}`, quote(value));
  };
  for (const { raw } of split(text)) {
    if (lineType(raw) === "concept") flag("concepts", raw.replace(COMMENT, "").trim());
  }
  if (kind) flag("kind", kind);
  if (retainSets.length) flag("retain", retainSets.join(","));
  if (hasRetainText) flag("retain-file", "protected.txt");
  for (const [name, setting] of Object.entries(settings)) {
    const isSet = setting !== undefined && setting !== "";
    if (isSet && setting !== defaults[name]) flag(name, setting);
  }
  return [...words, "--out", "cleaned/"].join(" ");
}
