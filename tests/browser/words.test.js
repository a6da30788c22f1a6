import assert from "node:assert/strict";
import test from "node:test";
import { setWords, t } from "../../web/words.js";

test("only words of the table are translated", () => {
  setWords({ "No report yet": "Noch kein Bericht" });
  assert.equal(t("No report yet"), "Noch kein Bericht");
  for (const text of ["constructor", "__proto__", "toString", "hasOwnProperty"]) assert.equal(t(text), text);
  setWords(null);
  assert.equal(t("No report yet"), "No report yet");
});
