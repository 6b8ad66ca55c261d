/** SQL as PostgreSQL reads it: its tokens, its statements, and names and values as SQL. */

/** @typedef {"space" | "comment" | "string" | "name" | "number" | "keyword" | "word" | "other"} Kind */
/** @typedef {{ kind: Kind, start: number, end: number }} Token */
/** @typedef {{ start: number, end: number }} Span */

const KEYWORDS = new Set(
  `add all alter always analyze and any array as asc atomic authorization before begin between bigint boolean both by call cascade
  case cast check collate column comment commit concurrently conflict constraint copy create cross current_date current_role
  current_timestamp current_user cursor date deallocate declare default deferrable deferred delete desc distinct do domain drop each
  else end enum except excluding exclude execute exists explain extension false fetch filter first for force foreign from full function generated
  grant group grouping having identity if ilike immediate immutable in including index inherits initially inner insert instead integer
  intersect interval into is isolation join json jsonb key language lateral leading leakproof left level like limit listen local lock
  materialized merge natural next no not nothing notify null nulls numeric of off offset on only or order outer over overlaps
  owned parallel partition permissive policy prepare primary procedure public range recursive references refresh reindex
  release rename replace reset restrict restrictive returning returns revoke right role rollback row rows savepoint schema security
  select sequence serial session session_user set setof show similar smallint some stable start storage strict symmetric
  table tablesample temporary text then timestamp timestamptz to trailing transaction trigger true truncate type union unique unlisten until
  update using uuid vacuum values varchar variadic verbose view volatile when where window with within without work write`.split(
    /\s+/,
  ),
);

/** What PostgreSQL does not take for a name unless it is quoted. */
const RESERVED = new Set(
  `all analyse analyze and any array as asc asymmetric authorization binary both case cast check collate collation column concurrently
  constraint create cross current_catalog current_date current_role current_schema current_time current_timestamp current_user default
  deferrable desc distinct do else end except false fetch for foreign freeze from full grant group having ilike in initially inner
  intersect into is isnull join lateral leading left like limit localtime localtimestamp natural not notnull null offset on only or
  order outer overlaps placing primary references returning right select session_user similar some symmetric system_user table
  tablesample then to trailing true union unique user using variadic verbose when where window with between bigint bit boolean char
  character coalesce dec decimal exists extract float greatest grouping inout int integer interval json least national nchar none
  nullif numeric out overlay position precision real row setof smallint substring time timestamp treat trim values varchar xmltable`.split(
    /\s+/,
  ),
);

export const keywords = [...KEYWORDS];

const WORD = "A-Za-z_\\u0080-\\uffff";
const ESCAPED = "'(?:[^'\\\\]|\\\\[^]|'')*(?:'|$)";
// Such a string goes on after a line end, with its escapes.
const NEWLINE = "[ \\t\\f\\v]*(?:--[^\\n\\r]*)?[\\n\\r](?:[ \\t\\n\\r\\f\\v]|--[^\\n\\r]*[\\n\\r])*";
const TOKEN = new RegExp(
  [
    "(?<space>[ \\t\\n\\r\\f\\v]+)",
    "(?<comment>--[^\\n\\r]*)",
    "(?<block>/\\*)",
    `(?<string>[eE]${ESCAPED}(?:${NEWLINE}${ESCAPED})*|[bBxXnN]?'[^']*(?:''[^']*)*(?:'|$)|[uU]&'[^']*(?:''[^']*)*(?:'|$))`,
    '(?<name>(?:[uU]&)?"[^"]*(?:""[^"]*)*(?:"|$))',
    `(?<number>(?:\\d[\\d_]*(?:\\.(?!\\.)[\\d_]*)?|\\.\\d[\\d_]*)(?:[eE][+-]?\\d+)?(?![${WORD}])|0[xX][\\da-fA-F_]+)`,
    `(?<word>[${WORD}][${WORD}0-9$]*)`,
    `(?<dollar>\\$(?:[${WORD}][${WORD}0-9]*)?\\$)`,
    "(?<other>[^])",
  ].join("|"),
  "y",
);

/**
 * The tokens of `text`, which are together all of it. What is not closed lasts until its end.
 * @param {string} text
 * @returns {Generator<Token>}
 */
export function* tokens(text) {
  let start = 0;
  while (start < text.length) {
    TOKEN.lastIndex = start;
    const found = /** @type {Record<string, string>} */ (TOKEN.exec(text)?.groups ?? {});
    let end = TOKEN.lastIndex || text.length;
    /** @type {Kind} */
    let kind = "other";
    if (found.space) kind = "space";
    else if (found.comment) kind = "comment";
    else if (found.block) {
      kind = "comment";
      end = endOfComment(text, end);
    } else if (found.string) kind = "string";
    else if (found.name) kind = "name";
    else if (found.number) kind = "number";
    else if (found.word) kind = KEYWORDS.has(found.word.toLowerCase()) ? "keyword" : "word";
    else if (found.dollar) {
      kind = "string";
      const closed = text.indexOf(found.dollar, end);
      end = closed < 0 ? text.length : closed + found.dollar.length;
    }
    yield { kind, start, end };
    start = end;
  }
}

/**
 * @param {string} text
 * @param {number} from
 */
function endOfComment(text, from) {
  const edge = /\/\*|\*\//g;
  edge.lastIndex = from;
  for (let depth = 1, found; (found = edge.exec(text));) {
    depth += found[0] === "/*" ? 1 : -1;
    if (depth === 0) return edge.lastIndex;
  }
  return text.length;
}

/**
 * The statements of `text`, without their semicolons and what is around them.
 * @param {string} text
 * @returns {Span[]}
 */
export function statements(text) {
  /** @type {Span[]} */
  const found = [];
  /** @type {(Span & { first: string, depth: number, body: boolean, last: string }) | null} */
  let current = null;
  for (const { kind, start, end } of tokens(text)) {
    if (kind === "space" || kind === "comment") continue;
    const word = text.slice(start, end).toLowerCase();
    if (current === null) {
      if (word === ";") continue;
      current = { start, end, first: word, depth: 0, body: false, last: "" };
    } else if (word === ";" && current.depth === 0 && !current.body) {
      found.push({ start: current.start, end: current.end });
      current = null;
      continue;
    }
    if (word === "(") current.depth++;
    else if (word === ")") current.depth = Math.max(0, current.depth - 1);
    // The statements of such a body end with semicolons, and any other END belongs to a CASE.
    else if (word === "atomic" && current.last === "begin" && current.first === "create") current.body = true;
    else if (word === "end" && current.body && (current.last === ";" || current.last === "atomic"))
      current.body = false;
    current.last = word;
    current.end = end;
  }
  if (current !== null) found.push({ start: current.start, end: current.end });
  return found;
}

/**
 * The statement in or just before `position`, or the first one.
 * @param {string} text
 * @param {number} position
 * @returns {Span | null}
 */
export function statementAt(text, position) {
  const all = statements(text);
  return all.findLast((one) => one.start <= position) ?? all[0] ?? null;
}

/** A name as SQL, quoted where it has to be. @param {string} text */
export function ident(text) {
  if (text.includes("\0")) throw new Error("A name cannot have a NUL character in it.");
  return /^[a-z_][a-z0-9_$]*$/.test(text) && !RESERVED.has(text) ? text : `"${text.replaceAll('"', '""')}"`;
}

/** @param {string | null | undefined} schema @param {string} name */
export const qualified = (schema, name) => (schema ? `${ident(schema)}.${ident(name)}` : ident(name));

/** A text as SQL, whatever standard_conforming_strings says. @param {string} text */
export function literal(text) {
  if (text.includes("\0")) throw new Error("A text cannot have a NUL character in it.");
  const doubled = text.replaceAll("'", "''");
  return text.includes("\\") ? `E'${doubled.replaceAll("\\", "\\\\")}'` : `'${doubled}'`;
}
