// A concept list as text: the text is all that is saved, so every edit rewrites one line and leaves the others alone.
// How a line is READ is the server's business; what is guessed here is shown only until its answer comes.

export const OFF = "# off: ";
const ARROW = /->|→/;
const KIND = /\|\|\s*([A-Za-z]+)\s*$/;

/** [{raw, end}]: the lines and how each ends, which together are the text again. */
export function split(text) {
  const found = [];
  for (const [whole, raw, end] of text.matchAll(/([^\r\n]*)(\r\n|\r|\n|$)/g)) {
    if (whole || !found.length || found.at(-1).end) found.push({ raw, end });
    if (!end) break;
  }
  return found;
}

export const join = (lines) => lines.map(({ raw, end }) => raw + end).join("");

/** What a line seems to say: {type: blank | note | off | concept, target, aliases, anchor, kind, comment}. */
export function guess(raw) {
  const off = raw.startsWith(OFF);
  const line = off ? raw.slice(OFF.length) : raw;
  if (!line.trim()) return { type: "blank" };
  if (/^\s*#/.test(line)) return { type: "note", comment: line };
  const at = line.search(/\s#/);
  const comment = at < 0 ? "" : line.slice(at);
  let body = at < 0 ? line : line.slice(0, at);
  const own = body.match(KIND);
  const kind = own ? own[1].toLowerCase() : null;
  if (own) body = body.slice(0, own.index);
  const [left, ...rest] = body.split(ARROW);
  const [target, ...aliases] = left.split("|").map((name) => name.trim());
  const anchor = rest.length ? rest.join("->").trim() : null;
  return { type: off ? "off" : "concept", target, aliases, anchor, kind, comment };
}

/** The line for these parts; `anchor` null: as the kind says, "": as if the name were not there. */
export function write({ type = "concept", target, aliases = [], anchor = null, kind = null, comment = "" }) {
  const names = [target, ...aliases].map((name) => name.trim()).filter(Boolean).join(" | ");
  const line = names + (anchor === null ? "" : ` -> ${anchor.trim()}`.trimEnd()) + (kind ? ` || ${kind}` : "");
  return (type === "off" ? OFF : "") + line + comment;
}

export function replace(text, place, raw) {
  const lines = split(text);
  lines[place] = { ...lines[place], raw };
  return join(lines);
}

export function remove(text, place) {
  const lines = split(text);
  const [gone] = lines.splice(place, 1);
  if (place === lines.length && place > 0) lines[place - 1].end = gone.end;
  return join(lines);
}

/** The line at `from` comes to stand at `to`; line ends stay where they are. */
export function move(text, from, to) {
  const lines = split(text);
  if (from === to || !lines[from] || !lines[to]) return text;
  const raws = lines.map(({ raw }) => raw);
  raws.splice(to, 0, ...raws.splice(from, 1));
  return join(lines.map(({ end }, place) => ({ raw: raws[place], end })));
}

export function add(text, raws) {
  const start = text && !/[\r\n]$/.test(text) ? text + "\n" : text;
  return start + raws.join("\n");
}

export const toggle = (raw) => (raw.startsWith(OFF) ? raw.slice(OFF.length) : OFF + raw);

/** Adds phrases as aliases of a target, wherever it stands; null where it stands nowhere. */
export function addAliases(text, target, phrases) {
  const wanted = target.toLowerCase();
  const place = split(text).findIndex(({ raw }) => {
    const one = guess(raw);
    return one.type === "concept" && one.target.toLowerCase() === wanted;
  });
  if (place < 0) return null;
  const one = guess(split(text)[place].raw);
  const known = new Set([one.target, ...one.aliases].map((name) => name.toLowerCase()));
  const fresh = phrases.filter((phrase) => !known.has(phrase.toLowerCase()));
  return fresh.length ? replace(text, place, write({ ...one, aliases: [...one.aliases, ...fresh] })) : text;
}

/** Rows of a table: quotes as spreadsheets write them. */
export function rows(text, mark) {
  const found = [[""]];
  let quoted = false;
  for (let i = 0; i < text.length; i++) {
    const letter = text[i];
    const row = found.at(-1);
    if (quoted) {
      if (letter === '"' && text[i + 1] === '"') row[row.length - 1] += text[++i];
      else if (letter === '"') quoted = false;
      else row[row.length - 1] += letter;
    } else if (letter === '"' && row.at(-1) === "") quoted = true;
    else if (letter === mark) row.push("");
    else if (letter === "\n") found.push([""]);
    else if (letter !== "\r") row[row.length - 1] += letter;
  }
  return found.filter((row) => row.some((cell) => cell.trim()));
}

/** Lines from what was pasted or dropped: a list, a column, or a table with a heading. */
export function linesFrom(text, fileName = "") {
  const plain = text.replace(/^\ufeff/, "");
  const csv = /\.(csv|tsv)$/i.test(fileName);
  if (!csv && !plain.includes("\t")) return plain.split(/\r\n|\r|\n/).map((line) => line.trim()).filter(Boolean);
  const first = plain.split(/\r\n|\r|\n/, 1)[0];
  const table = rows(plain, [..."\t;,"].find((mark) => first.includes(mark)) ?? ",");
  const heading = table[0].map((cell) => cell.trim().toLowerCase());
  const named = heading.findIndex((name) => ["target", "concept", "name"].includes(name));
  const column = (name, other) => (named < 0 ? other : heading.indexOf(name));
  const places = { target: Math.max(0, named), anchor: column("anchor", 1), aliases: column("aliases", -1), kind: column("kind", -1) };
  const cell = (row, name) => (row[places[name]] ?? "").trim();
  return table.slice(named < 0 ? 0 : 1).filter((row) => cell(row, "target")).map((row) =>
    write({
      target: cell(row, "target"),
      aliases: cell(row, "aliases").split("|"),
      anchor: cell(row, "anchor") || null,
      kind: cell(row, "kind").toLowerCase() || null,
    }),
  );
}

const quote = (text) => (/^[\w./:=,@%+-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`);

/** The same erasure for a terminal. `kept`: {builtin, typed} of the retain set, if there is one. */
export function commandLine({ checkpoint, text, kind, preset, strength, seed, budget, effort, kept }) {
  const names = split(text).map(({ raw }) => guess(raw)).filter((one) => one.type === "concept").map((one) => write({ ...one, comment: "" }));
  const parts = ["speed-erase", "erase", quote(checkpoint), ...names.flatMap((name) => ["--concepts", quote(name)]), "--kind", kind];
  if (kept?.builtin.length) parts.push("--retain", kept.builtin.join(","));
  if (kept?.typed) parts.push("--retain-file", "kept.txt");
  if (preset !== "auto") parts.push("--preset", preset);
  if (strength !== 1) parts.push("--strength", String(strength));
  if (seed) parts.push("--seed", String(seed));
  if (budget && budget !== "more") parts.push("--budget", budget);
  if (effort && effort !== "normal") parts.push("--effort", effort);
  return [...parts, "--out", "cleaned/"].join(" ");
}
