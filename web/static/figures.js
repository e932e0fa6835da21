// Makes the PNG of a figure from its SVG, with the page's styles, at twice its size.
"use strict";
(() => {
  const properties = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "opacity", "font-size", "font-weight", "font-family"];

  function picture(svg) {
    const copy = svg.cloneNode(true);
    const from = [svg, ...svg.querySelectorAll("*")];
    const to = [copy, ...copy.querySelectorAll("*")];
    from.forEach((element, index) => {
      const style = getComputedStyle(element);
      to[index].setAttribute("style", properties.map((name) => `${name}:${style.getPropertyValue(name)}`).join(";"));
    });
    const { width, height } = svg.viewBox.baseVal;
    copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
    copy.setAttribute("width", width);
    copy.setAttribute("height", height);
    return { url: URL.createObjectURL(new Blob([new XMLSerializer().serializeToString(copy)], { type: "image/svg+xml" })), width, height };
  }

  function save(svg, name) {
    const { url, width, height } = picture(svg);
    const image = new Image();
    image.onload = () => {
      const canvas = document.createElement("canvas");
      canvas.width = 2 * width;
      canvas.height = 2 * height;
      const context = canvas.getContext("2d");
      context.fillStyle = getComputedStyle(document.body).backgroundColor;
      context.fillRect(0, 0, canvas.width, canvas.height);
      context.drawImage(image, 0, 0, canvas.width, canvas.height);
      URL.revokeObjectURL(url);
      canvas.toBlob((blob) => {
        const link = document.createElement("a");
        link.href = URL.createObjectURL(blob);
        link.download = name;
        link.click();
        setTimeout(() => URL.revokeObjectURL(link.href), 10000);
      });
    };
    image.src = url;
  }

  for (const section of document.querySelectorAll(".figure")) {
    const place = section.querySelector(".png");
    if (!place) continue;
    const drawings = [...section.querySelectorAll("figure svg")];
    drawings.forEach((svg, index) => {
      const button = document.createElement("button");
      const number = drawings.length > 1 ? ` ${index + 1}` : "";
      button.type = "button";
      button.textContent = `PNG${number}`;
      button.addEventListener("click", () => save(svg, `${section.id}${number.trim() && `-${number.trim()}`}.png`));
      place.append(button, " ");
    });
  }
})();
