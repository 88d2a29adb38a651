// Bundles the libraries of the viewer into src/fxplug_viz/assets/vendor, with their licences; see README.md.
import { build } from "esbuild";
import { copyFileSync, existsSync, readFileSync, writeFileSync } from "node:fs";

const target = "../src/fxplug_viz/assets/vendor/";
copyFileSync("node_modules/@dagrejs/dagre/dist/dagre.min.js", target + "dagre.min.js");
const result = await build({
  entryPoints: ["entry.js"], bundle: true, minify: true, format: "iife", globalName: "vendor",
  legalComments: "none", metafile: true, outfile: target + "vendor.min.js",
});
for (const name of ["dagre.min.js", "vendor.min.js"]) {
  const text = readFileSync(target + name, "utf8").replace(/\n?\/\/# sourceMappingURL=.*\n?/g, "\n");
  writeFileSync(target + name, text);
}
const packages = new Set(["@dagrejs/dagre", "@dagrejs/graphlib"]);
for (const input of Object.keys(result.metafile.inputs)) {
  const match = /node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(input);
  if (match) packages.add(match[1]);
}
const parts = [];
for (const name of [...packages].sort()) {
  const folder = `node_modules/${name}/`;
  const about = JSON.parse(readFileSync(folder + "package.json", "utf8"));
  const file = ["LICENSE", "LICENSE.md", "LICENSE.txt", "LICENCE"].map((each) => folder + each).find(existsSync);
  if (!file) throw new Error(`${name} has no licence file`);
  parts.push(`${name} ${about.version} (${about.license})\n\n${readFileSync(file, "utf8").trim()}\n`);
}
writeFileSync(target + "LICENSES.txt", parts.join("\n" + "-".repeat(100) + "\n\n"));
