// MathJax 3.2.2 (Apache-2.0, LICENSE-mathjax.txt) ships with the site, so formulas need no network.
window.MathJax = {
  tex: {
    inlineMath: [["\\(", "\\)"]],
    displayMath: [["\\[", "\\]"]],
  },
  options: {
    enableMenu: false, // its menu loads further files, which the site does not have
    ignoreHtmlClass: ".*|",
    processHtmlClass: "arithmatex",
  },
};
