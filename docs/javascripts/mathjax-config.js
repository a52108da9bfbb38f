// MathJax 3.2.2 (Apache-2.0, LICENSE-mathjax.txt) ships with the site, so formulas need no network.
window.MathJax = {
  tex: {
    inlineMath: [["\\(", "\\)"]],
    displayMath: [["\\[", "\\]"]],
  },
  svg: { scale: 0.92 }, // its letters are taller than those of the text
  options: {
    enableMenu: false, // its menu loads further files, which the site does not have
    ignoreHtmlClass: ".*|",
    processHtmlClass: "arithmatex",
  },
};
