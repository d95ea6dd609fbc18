// What the browser keeps for all tabs: texts of documents, and conversations. Without a database
// (some private windows) the page keeps them as long as it is open.
const kStores = ['documents', 'texts', 'conversations'];
const memory = Object.fromEntries(kStores.map((name) => [name, new Map()]));

const done = (request) => new Promise((resolve, reject) => {
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});

let opened = null;
function database() {
  opened ??= new Promise((resolve) => {
    try {
      const request = indexedDB.open('sluice', 1);
      request.onupgradeneeded = () => {
        for (const name of kStores) request.result.createObjectStore(name, {keyPath: 'key'});
      };
      request.onsuccess = () => resolve(request.result);
      request.onerror = request.onblocked = () => resolve(null);
    } catch {
      resolve(null);
    }
  });
  return opened;
}

// `use`: of an object store, to a request. `otherwise`: the same of a Map.
async function run(name, mode, use, otherwise) {
  const base = await database();
  if (base !== null) {
    try {
      return await done(use(base.transaction(name, mode).objectStore(name)));
    } catch {
      // Full, or taken away.
    }
  }
  return otherwise(memory[name]);
}

export const put = (name, value) =>
    run(name, 'readwrite', (store) => store.put(value), (map) => map.set(value.key, value));
export const get = (name, key) => run(name, 'readonly', (store) => store.get(key), (map) => map.get(key));
export const remove = (name, key) =>
    run(name, 'readwrite', (store) => store.delete(key), (map) => map.delete(key));
export const all = (name) => run(name, 'readonly', (store) => store.getAll(), (map) => [...map.values()]);
export const keys = (name) => run(name, 'readonly', (store) => store.getAllKeys(), (map) => [...map.keys()]);
