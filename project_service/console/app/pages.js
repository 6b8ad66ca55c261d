/** The pages, in the order of the navigation. A page is loaded when it is first gone to. */

/** @typedef {{ name: string, title: string, icon: string, tag: string, load: () => Promise<unknown> }} Listed */

/** @type {readonly Listed[]} */
export const pages = [
  {
    name: "overview",
    title: "Overview",
    icon: "overview",
    tag: "ps-overview",
    load: () => import("./pages/overview.js"),
  },
  { name: "tables", title: "Tables", icon: "tables", tag: "ps-tables", load: () => import("./pages/tables.js") },
  { name: "sql", title: "SQL", icon: "sql", tag: "ps-sql", load: () => import("./pages/sql.js") },
  { name: "storage", title: "Storage", icon: "storage", tag: "ps-storage", load: () => import("./pages/storage.js") },
  { name: "users", title: "Users", icon: "users", tag: "ps-users", load: () => import("./pages/users.js") },
  { name: "keys", title: "Keys and settings", icon: "keys", tag: "ps-keys", load: () => import("./pages/keys.js") },
  { name: "mail", title: "Mail", icon: "mail", tag: "ps-mail", load: () => import("./pages/mail.js") },
  { name: "log", title: "Log", icon: "log", tag: "ps-log", load: () => import("./pages/log.js") },
  { name: "api", title: "API", icon: "api", tag: "ps-api", load: () => import("./pages/api.js") },
];
