// Lets Node 20 run the .ts files here: it takes out the few kinds of types that they use.
// Node 22.18 and newer do so by themselves: `node worker.ts`.
import { readFile } from "node:fs/promises";
import { register } from "node:module";
import { isMainThread } from "node:worker_threads";

const NAMES = "(?:any|unknown|string|number|object|Job|Held|AbortSignal|Promise<\\w+>|Record<[\\w, ]+>)";

export async function load(url, context, next) {
  if (!url.endsWith(".ts")) return next(url, context);
  const source = (await readFile(new URL(url), "utf8"))
    .replace(/^(interface|type) .*\n/gm, "\n")
    .replace(new RegExp(`(?<=[\\w)}])\\??: ${NAMES}(?=[,);]| [={])`, "g"), "")
    .replace(/new Set<\w+>/g, "new Set");
  return { format: "module", shortCircuit: true, source };
}

if (isMainThread) register(import.meta.url);
