// What the browser remembers for us; where it may not, we go on without.

const safely = (work) => {
  try {
    return work();
  } catch {
    return null;
  }
};

export const tab = {
  get: (key) => safely(() => sessionStorage.getItem(key)),
  set: (key, value) => safely(() => sessionStorage.setItem(key, value)),
};

export const browser = {
  get: (key) => safely(() => localStorage.getItem(key)),
  set: (key, value) => safely(() => localStorage.setItem(key, value)),
};
