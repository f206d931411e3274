// Browser storage; a browser that forbids it gets none.

const attempt = (work) => {
  try {
    return work();
  } catch {
    return null;
  }
};

export const tabStorage = {
  get: (key) => attempt(() => sessionStorage.getItem(key)),
  set: (key, value) => attempt(() => sessionStorage.setItem(key, value)),
};

export const browserStorage = {
  get: (key) => attempt(() => localStorage.getItem(key)),
  set: (key, value) => attempt(() => localStorage.setItem(key, value)),
};
