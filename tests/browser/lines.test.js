import assert from "node:assert/strict";
import test from "node:test";
import {
  OFF,
  add,
  addAliases,
  commandLine,
  firstNames,
  guess,
  join,
  lineType,
  linesFrom,
  move,
  namesFrom,
  remove,
  rename,
  replace,
  rows,
  split,
  toggle,
  write,
} from "../../web/lines.js";

const TEXTS = ["", "a", "a\n", "a\n\nb", "a\r\nb\rc\n", "# note\n  Van Gogh -> art  # why\n\n", "\n\n"];

test("split and join keep every byte, whatever the line ends", () => {
  for (const text of TEXTS) assert.equal(join(split(text)), text);
});

test("a line is guessed and written again as it was", () => {
  const line = "Snoopy | the beagle -> dog || character # why";
  assert.deepEqual(guess(line), {
    off: false,
    target: "Snoopy",
    aliases: ["the beagle"],
    anchor: "dog",
    kind: "character",
    strength: 1,
    comment: " # why",
  });
  const lines = ["Van Gogh", "Van Gogh -> art", "Van Gogh ->", "C# language -> code", "Van Gogh || style"];
  for (const raw of [line, ...lines, OFF + "Goya -> art"]) assert.equal(write(guess(raw)), raw);
  assert.equal(guess("Van Gogh").anchor, null, "the kind decides");
  assert.equal(guess("Van Gogh ->").anchor, "", "the name is left out");
});

test("an edit touches one line and no other byte", () => {
  const text = "a\r\n# note\n\n  b -> c \nd";
  assert.equal(replace(text, 3, "b -> e"), "a\r\n# note\n\nb -> e\nd");
  assert.equal(remove(text, 4), "a\r\n# note\n\n  b -> c ");
  assert.equal(remove(text, 0), "# note\n\n  b -> c \nd");
  assert.equal(move("a\nb\nc", 2, 0), "c\na\nb");
  assert.equal(move("a\nb", 0, -1), "a\nb");
  assert.equal(add("a", ["b", "c"]), "a\nb\nc");
  assert.equal(add("", ["b"]), "b");
});

test("off is commented out, and on again is as before", () => {
  assert.equal(toggle("Goya -> art"), "# off: Goya -> art");
  assert.equal(toggle(toggle("Goya -> art")), "Goya -> art");
  const types = ["Goya", OFF + "Goya", "# a note", OFF + "# a note", " "].map(lineType);
  assert.deepEqual(types, ["concept", "off", "note", "note", "blank"]);
});

test("a column, a table and a file become lines", () => {
  assert.deepEqual(linesFrom("Goya\r\n\r\n Munch \r\n"), ["Goya", "Munch"]);
  assert.deepEqual(linesFrom("Doe, Jane\nRoe, Jo"), ["Doe, Jane", "Roe, Jo"], "commas are part of a name");
  assert.deepEqual(linesFrom("Goya\tart\nMunch\t"), ["Goya -> art", "Munch"]);
  const csv = 'target;anchor;aliases;kind\n"Doe; ""Jane""";person;JD|Janie;Person\n;x;;\n';
  assert.deepEqual(linesFrom(csv, "list.CSV"), ['Doe; "Jane" | JD | Janie -> person || person']);
  assert.deepEqual(rows('a,"b\nc",d\n', ","), [["a", "b\nc", "d"]]);
});

test("aliases are inserted after the names, and the rest of the line stays", () => {
  assert.equal(addAliases("Goya", ["Paco", "G."]), "Goya | Paco | G.");
  assert.equal(addAliases("Goya|Paco->art  # why", ["G."]), "Goya|Paco | G.->art  # why");
  assert.equal(addAliases("  Goya  → art", ["G."]), "  Goya | G.  → art");
  assert.equal(addAliases("Goya || style", ["G."]), "Goya | G. || style");
  assert.equal(addAliases("C# language # why", ["C sharp"]), "C# language | C sharp # why");
});

test("a graph becomes a command line that a shell can read", () => {
  const graph = {
    checkpoint: "models/checkpoints/a model.safetensors",
    text: "Mary O'Neil -> art # why\n# off: Goya\n# note",
    kind: "style",
    retainSets: ["artists"],
    hasRetainText: true,
    defaults: { preset: "auto", strength: 1, seed: 0, priority: "erase-fully", effort: "normal" },
  };
  const settings = { preset: "auto", strength: 1.2, seed: 0, priority: "balanced", effort: "fast" };
  assert.equal(
    commandLine({ ...graph, settings }),
    "speed-erase erase 'models/checkpoints/a model.safetensors' --concepts 'Mary O'\\''Neil -> art' " +
      "--kind style --retain artists --retain-file protected.txt --strength 1.2 --priority balanced --effort fast " +
      "--out cleaned/",
  );
  const plain = commandLine({ ...graph, retainSets: [], settings: graph.defaults });
  assert.doesNotMatch(plain, /--(retain|priority|effort|preset|strength|seed)\b(?!-)/);
  const other = commandLine({ ...graph, settings, defaults: settings });
  assert.doesNotMatch(other, /--(priority|effort|strength)/, "the defaults are the server's");
});

test("no value of a workflow reaches a shell unquoted", () => {
  const evil = "'; rm -rf ~ #";
  const settings = { preset: evil, strength: evil, seed: "$(id)", priority: "`id`", effort: "--force" };
  const command = commandLine({
    checkpoint: `models/checkpoints/${evil}`,
    text: `${evil.replace(" #", "")} -> art\n-x`,
    kind: evil,
    retainSets: [evil],
    hasRetainText: false,
    settings,
    defaults: {},
  });
  const quoted = command.match(/'[^']*'|\\'|[^\s']+/g).filter((part) => !part.startsWith("'"));
  for (const part of quoted) assert.match(part, /^(\\'|[\w./:=,@%+-]+)$/, part);
  assert.ok(command.includes("--effort=--force") && command.includes("--concepts=-x"));
  assert.ok(command.includes("--seed '$(id)'") && command.includes("--priority '`id`'"));
});

test("commas separate typed names, and a comma can be part of a name", () => {
  assert.deepEqual(namesFrom("Claude Monet, Edvard Munch"), ["Claude Monet", "Edvard Munch"]);
  assert.deepEqual(namesFrom("Monet, Munch -> art || style"), [
    "Monet -> art || style",
    "Munch -> art || style",
  ]);
  assert.deepEqual(namesFrom('"Doe, Jane", Roe'), ["Doe, Jane", "Roe"]);
  assert.deepEqual(namesFrom("Doe\\, Jane"), ["Doe, Jane"]);
  assert.deepEqual(namesFrom('the "Little" one'), ['the "Little" one']);
  assert.deepEqual(namesFrom("莫奈，蒙克"), ["莫奈", "蒙克"]);
});

test("a heading isn't a concept", () => {
  assert.deepEqual(linesFrom("Name\nGoya\nMunch"), ["Goya", "Munch"]);
  assert.deepEqual(linesFrom("artist\tbecomes\nGoya\tart"), ["Goya -> art"]);
  assert.deepEqual(linesFrom("Name"), ["Name"], "alone it is one");
});

test("prompts follow the first name of a list", () => {
  assert.deepEqual(firstNames("# note\nOrla Venn | the Copper Hand -> art\nx"), [
    "Orla Venn",
    "the Copper Hand",
  ]);
  const old = ["Orla Venn", "the Copper Hand"];
  assert.equal(rename("a cat by Orla Venn", old, ["Dario"]), "a cat by Dario");
  assert.equal(rename("a boat by the Copper Hand", old, ["Dario", "the Fox"]), "a boat by the Fox");
  assert.equal(rename("a house", old, ["Dario"]), "a house");
});

test("a line can have its own strength, after its type or alone", () => {
  for (const line of [
    "Van Gogh -> art || 0.5",
    "Snoopy | beagle -> dog || character || 1.2",
    "Goya || .3 # why",
  ]) {
    const fields = guess(line);
    assert.equal(guess(write(fields)).strength, fields.strength);
    assert.deepEqual({ ...guess(write(fields)), comment: "" }, { ...fields, comment: "" });
  }
  assert.equal(guess("Van Gogh -> art || 0.5").strength, 0.5);
  assert.equal(guess("Snoopy -> dog || character || 1.2").kind, "character");
  assert.equal(guess("Goya || person").strength, 1);
  assert.equal(write({ target: "Goya", strength: 1 }), "Goya", "1 is not written");
  assert.deepEqual(linesFrom("name,strength\nGoya,0.4\nMunch,", "list.csv"), ["Goya || 0.4", "Munch"]);
});
