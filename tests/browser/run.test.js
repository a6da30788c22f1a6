import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";
import { codeOf } from "../../web/run.js";

const cases = JSON.parse(readFileSync(new URL("./run_codes.json", import.meta.url)));

test("codes are those of the server", () => {
  for (const { prompt, id, code } of cases) assert.equal(codeOf(prompt, id), code);
});
