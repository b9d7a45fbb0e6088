type Camel<S extends string> = S extends `${infer Head}_${infer Tail}` ? `${Head}${Capitalize<Camel<Tail>>}` : S;

/** Fields of an object with their names in camelCase: `external_id` as `externalId`. */
export type CamelCased<T> = T extends object ? { [K in keyof T as K extends string ? Camel<K> : K]: T[K] } : T;

/** Fields by their names in the API, or in camelCase. */
export type EitherCase<T> = T | CamelCased<T>;

/** Return an object whose fields have the API's names; values stay as they are, but for those of `policy`. */
export function inSnakeCase(fields: object): Record<string, unknown> {
  const entries = Object.entries(fields).map(([name, value]) => [
    name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`),
    name === "policy" && value !== null && typeof value === "object" ? inSnakeCase(value) : value,
  ]);
  return Object.fromEntries(entries) as Record<string, unknown>;
}
