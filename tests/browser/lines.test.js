import assert from "node:assert/strict";
import test from "node:test";
import {
  OFF,
  add,
  addAliases,
  commandLine,
  guess,
  join,
  lineType,
  linesFrom,
  move,
  remove,
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
    defaults: { preset: "auto", strength: 1, seed: 0, budget: "more", effort: "normal" },
  };
  const settings = { preset: "auto", strength: 1.2, seed: 0, budget: "some", effort: "quick" };
  assert.equal(
    commandLine({ ...graph, settings }),
    "speed-erase erase 'models/checkpoints/a model.safetensors' --concepts 'Mary O'\\''Neil -> art' " +
      "--kind style --retain artists --retain-file kept.txt --strength 1.2 --budget some --effort quick " +
      "--out cleaned/",
  );
  const plain = commandLine({ ...graph, retainSets: [], settings: graph.defaults });
  assert.doesNotMatch(plain, /--(retain|budget|effort|preset|strength|seed)\b(?!-)/);
  const other = commandLine({ ...graph, settings, defaults: settings });
  assert.doesNotMatch(other, /--(budget|effort|strength)/, "the defaults are the server's");
});
