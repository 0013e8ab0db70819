// What the theme leaves out for those who use the keyboard or a screen reader: names, and scrolling without a mouse.
(function () {
  function complete() {
    document.querySelectorAll('.md-search').forEach((e) => e.setAttribute('aria-label', 'Search'));
    document.querySelectorAll('pre > code, .md-typeset__scrollwrap').forEach((e) => e.setAttribute('tabindex', '0'));
    const seen = new Map();
    document.querySelectorAll('nav').forEach((e) => {
      const title = e.getAttribute('aria-labelledby') && document.getElementById(e.getAttribute('aria-labelledby'));
      const name = (e.dataset.name ??= ((title ? title.textContent : e.getAttribute('aria-label')) || (e.classList.contains('md-code__nav') ? 'Code' : 'Navigation')).trim());
      const number = (seen.get(name.toLowerCase()) ?? 0) + 1;
      seen.set(name.toLowerCase(), number);
      const label = number > 1 ? `${name} ${number}` : name;
      if (e.getAttribute('aria-label') !== label) e.setAttribute('aria-label', label);
      e.removeAttribute('aria-labelledby');
    });
  }
  complete();
  new MutationObserver(complete).observe(document.body, { childList: true, subtree: true });
})();
