// The little that all pages need: htmx sends the form token and disturbs nobody, theme and menu
// switch, forms ask first.
(() => {
  "use strict";
  const meta = (name) => document.querySelector(`meta[name="${name}"]`)?.content ?? "";

  document.addEventListener("htmx:config:request", (event) => {
    event.detail.ctx.request.headers["X-CSRF-Token"] = meta("csrf");
  });

  // Parts of a page renew themselves; not while a person reads, writes, or is there by keyboard.
  const isBusy = (part) => {
    if (document.hidden || getSelection()?.toString()) return true;
    if (part.querySelector("details[open], input:checked")) return true;
    const active = document.activeElement;
    return part.contains(active) && active.matches("input, select, textarea, button, :focus-visible");
  };
  // Asked again before the swap: a box that was ticked while the answer was on its way stays ticked.
  for (const moment of ["htmx:before:request", "htmx:before:swap"]) {
    document.addEventListener(moment, (event) => {
      if (isBusy(event.target)) event.preventDefault();
    });
  }

  // Cells carry the title of their column: on a telephone there is no head above them.
  const title = () => {
    for (const table of document.querySelectorAll(".scroll table")) {
      const titles = Array.from(table.tHead?.rows[0].cells ?? [], (head) => head.matches(".tick") ? "" : head.textContent.trim());
      for (const row of table.tBodies[0].rows) {
        titles.forEach((said, place) => { if (said && row.cells[place]) row.cells[place].dataset.title = said; });
      }
    }
  };
  title();
  document.addEventListener("htmx:after:swap", title);

  document.addEventListener("click", (event) => {
    const toggle = event.target.closest("[data-toggle]");
    if (toggle) {
      const isOpen = document.getElementById(toggle.dataset.toggle).classList.toggle("open");
      toggle.setAttribute("aria-expanded", String(isOpen));
    }
    const theme = event.target.closest("[data-theme-toggle]");
    if (theme) {
      event.preventDefault();
      const root = document.documentElement;
      const isDark = root.dataset.theme
        ? root.dataset.theme === "dark"
        : matchMedia("(prefers-color-scheme: dark)").matches;
      root.dataset.theme = isDark ? "light" : "dark";
      const path = meta("base") || "/";
      document.cookie = `relevo_theme=${root.dataset.theme}; path=${path}; max-age=31536000; samesite=strict`;
      document.dispatchEvent(new CustomEvent("relevo:theme"));
    }
    const copied = event.target.closest("[data-copy]");
    if (copied) navigator.clipboard?.writeText(copied.dataset.copy);
    const all = event.target.closest("input[data-all]");
    if (all) {
      for (const box of document.querySelectorAll(`input[name="${all.dataset.all}"]`)) {
        box.checked = all.checked;
      }
    }
  });

  document.addEventListener("submit", (event) => {
    const question = event.submitter?.dataset.confirm ?? event.target.dataset.confirm;
    if (question && !confirm(question)) event.preventDefault();
  }, true);

  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") document.querySelector('[data-toggle][aria-expanded="true"]')?.click();
    const isTyping = event.target.closest("input, textarea, select, [contenteditable]");
    if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
    const field = document.querySelector(`[data-shortcut="${CSS.escape(event.key)}"]`);
    if (field) {
      event.preventDefault();
      field.focus();
    }
  });
})();
