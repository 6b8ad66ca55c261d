/** Which browser, and on what: what a User-Agent says of that. */

/** The first that fits counts, since later ones pretend to be earlier ones. */
const PROGRAMS = /** @type {const} */ ([
  [/\bEdgA?\/(\d+)/, "Edge"],
  [/\bOPR\/(\d+)/, "Opera"],
  [/\bFirefox\/(\d+)/, "Firefox"],
  [/\bCriOS\/(\d+)|Chrom(?:e|ium)\/(\d+)/, "Chrome"],
  [/\bVersion\/(\d+)[\d.]* .*Safari\//, "Safari"],
]);
const SYSTEMS = /** @type {const} */ ([
  [/iPhone/, "iPhone"],
  [/iPad/, "iPad"],
  [/Android/, "Android"],
  [/Windows/, "Windows"],
  [/Mac OS X|Macintosh/, "macOS"],
  [/CrOS/, "ChromeOS"],
  [/Linux/, "Linux"],
]);

/** `deviceOf("Mozilla/5.0 (X11; Linux x86_64; rv:128.0) … Firefox/128.0")`: "Firefox on Linux". @param {string} agent */
export function deviceOf(agent) {
  const program = PROGRAMS.find(([pattern]) => pattern.test(agent))?.[1];
  const system = SYSTEMS.find(([pattern]) => pattern.test(agent))?.[1];
  if (program && system) return `${program} on ${system}`;
  if (program || system) return program ?? system ?? "";
  // A program names itself first: "curl/8.5.0".
  return agent.split(/[\s/]/, 1)[0].slice(0, 40) || "An unknown device";
}
