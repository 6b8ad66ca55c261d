/** Rights in words. */

const READABLE = /** @type {const} */ ({ SELECT: "read", INSERT: "add", UPDATE: "change", DELETE: "delete" });
const ORDER = Object.keys(READABLE);

/** What a privilege of PostgreSQL's allows. @param {string} privilege */
export const readable = (privilege) =>
  READABLE[/** @type {keyof typeof READABLE} */ (privilege.toUpperCase())] ?? privilege.toLowerCase();

/**
 * Who takes a role. @param {string} role @param {{ anon: string, authenticated: string, service: string }} roles
 */
export function titled(role, { anon, authenticated, service }) {
  const titles = {
    PUBLIC: "everybody",
    [anon]: "Not signed in",
    [authenticated]: "Signed in",
    [service]: "service key",
  };
  return Object.hasOwn(titles, role) ? `${titles[role]} (${role})` : role;
}

/**
 * Of whom a policy has no effect, as they have no grant for what it allows; with the privileges that they lack.
 * @param {{ command: string, roles: string[] }} policy
 * @param {readonly { role: string, privilege: string }[]} grants
 */
export function without({ command, roles }, grants) {
  const wanted = command === "ALL" ? ORDER : [command];
  const has = (/** @type {string} */ role) =>
    grants.some((one) => (one.role === role || one.role === "PUBLIC") && wanted.includes(one.privilege));
  return roles
    .filter((role) => role !== "PUBLIC" && !has(role))
    .map((role) => ({ role, privileges: wanted.map((one) => one.toLowerCase()) }));
}

/** Reading first, and what is rare last. @param {string} one @param {string} other */
export const byUse = (one, other) => place(one) - place(other);

/** @param {string} privilege */
const place = (privilege) => ORDER.indexOf(privilege.toUpperCase()) + 1 || ORDER.length + 1;
