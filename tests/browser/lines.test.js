import assert from "node:assert/strict";
import test from "node:test";
import { OFF, add, addAliases, commandLine, guess, join, linesFrom, move, remove, replace, rows, split, toggle, write } from "../../web/lines.js";

const TEXTS = ["", "a", "a\n", "a\n\nb", "a\r\nb\rc\n", "# note\n  Van Gogh -> art  # why\n\n", "\n\n"];

test("a text is its lines again, whatever they end in", () => {
  for (const text of TEXTS) assert.equal(join(split(text)), text);
});

test("a line says what it seems to say, and is written again as it was", () => {
  const line = "Snoopy | the beagle -> dog || character # why";
  assert.deepEqual(guess(line), { type: "concept", target: "Snoopy", aliases: ["the beagle"], anchor: "dog", kind: "character", comment: " # why" });
  for (const raw of [line, "Van Gogh", "Van Gogh -> art", "Van Gogh ->", "C# language -> code", "Van Gogh || style", OFF + "Goya -> art"]) {
    assert.equal(write(guess(raw)), raw);
  }
  assert.equal(guess("Van Gogh").anchor, null, "the kind decides");
  assert.equal(guess("Van Gogh ->").anchor, "", "as if the name were not there");
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
  assert.equal(guess("# a note").type, "note");
});

test("a column, a table and a file become lines", () => {
  assert.deepEqual(linesFrom("Goya\r\n\r\n Munch \r\n"), ["Goya", "Munch"]);
  assert.deepEqual(linesFrom("Doe, Jane\nRoe, Jo"), ["Doe, Jane", "Roe, Jo"], "commas are part of a name");
  assert.deepEqual(linesFrom("Goya\tart\nMunch\t"), ["Goya -> art", "Munch"]);
  const csv = 'target;anchor;aliases;kind\n"Doe; ""Jane""";person;JD|Janie;Person\n;x;;\n';
  assert.deepEqual(linesFrom(csv, "list.CSV"), ['Doe; "Jane" | JD | Janie -> person || person']);
  assert.deepEqual(rows('a,"b\nc",d\n', ","), [["a", "b\nc", "d"]]);
});

test("phrases become aliases of their concept, once", () => {
  const text = "# Dali\nSalvador Dali -> art\nGoya";
  assert.equal(addAliases(text, "salvador dali", ["Dalí", "SALVADOR DALI"]), "# Dali\nSalvador Dali | Dalí -> art\nGoya");
  assert.equal(addAliases(text, "Nobody", ["x"]), null);
  assert.equal(addAliases("Goya | Paco", "Goya", ["paco"]), "Goya | Paco");
});

test("a graph is told as a command line that a shell can read", () => {
  const asked = { checkpoint: "models/checkpoints/a model.safetensors", text: "Mary O'Neil -> art # why\n# off: Goya\n# note", kind: "style" };
  const line = commandLine({ ...asked, preset: "auto", strength: 1.2, seed: 0, budget: "some", effort: "quick", kept: { builtin: ["artists"], typed: true } });
  assert.equal(
    line,
    "speed-erase erase 'models/checkpoints/a model.safetensors' --concepts 'Mary O'\\''Neil -> art' --kind style --retain artists --retain-file kept.txt --strength 1.2 --budget some --effort quick --out cleaned/",
  );
  const plain = commandLine({ ...asked, preset: "auto", strength: 1, seed: 0, budget: "more", effort: "normal" });
  assert.doesNotMatch(plain, /--(budget|effort|preset|strength|seed)/);
});
