// What the browser keeps for us; where it keeps nothing, the page works all the same.

/** store: localStorage, or sessionStorage for this tab alone. */
export function recall(store, key) {
  try {
    return globalThis[store].getItem(key);
  } catch {
    return null;
  }
}

export function keep(store, key, value) {
  try {
    globalThis[store].setItem(key, value);
  } catch {
    // the user has forbidden it
  }
}
