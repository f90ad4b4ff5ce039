// tests/page.sh runs this: CHROMIUM PAGE FOLDER.
import puppeteer from "puppeteer-core";
import { pathToFileURL } from "node:url";

const [executablePath, file, out] = process.argv.slice(2);
const args = ["--no-sandbox", "--disable-gpu", "--no-zygote", "--disable-dev-shm-usage"];
const browser = await puppeteer.launch({ executablePath, headless: "shell", args });
const wrong = [];
const want = (holds, what) => holds || wrong.push(what);
for (const scheme of ["light", "dark"]) {
  for (const width of [390, 900, 1440]) {
    const page = await browser.newPage();
    page.on("pageerror", (error) => wrong.push(`${scheme} ${width}: ${error.message}`));
    page.on("console", (line) => line.type() === "error" && wrong.push(`${scheme} ${width}: ${line.text()}`));
    page.on("request", (request) => {
      const own = request.url().startsWith("file:") || request.url().startsWith("data:");
      want(own, `the page asks for ${request.url()}`);
    });
    await page.setViewport({ width, height: 1000 });
    await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
    await page.goto(pathToFileURL(file).href, { waitUntil: "load" });
    const seen = await page.evaluate(() => ({
      wide: document.documentElement.scrollWidth,
      boxes: document.querySelectorAll(".box").length,
      launches: JSON.parse(document.getElementById("data").textContent).steps[0].plans[0].launches.length,
      back: getComputedStyle(document.body).backgroundColor,
    }));
    want(seen.wide <= width, `${scheme} ${width}: the page is ${seen.wide} wide`);
    want(seen.boxes === seen.launches, `${scheme} ${width}: ${seen.boxes} boxes of ${seen.launches} launches`);
    const light = Math.min(...seen.back.match(/\d+/g).map(Number)) > 128;
    want(light === (scheme === "light"), `${scheme} ${width}: the page is ${seen.back}`);
    await page.screenshot({ path: `${out}/${scheme}-${width}.png`, fullPage: true });
    if (width === 1440) {
      await page.type("#search", "down_proj");
      await page.click("#out");
      const found = await page.evaluate(() => document.querySelectorAll(".box.found").length);
      want(found > 0, `${scheme}: nothing is found`);
      await page.evaluate(() => document.querySelector(".box.found").dispatchEvent(new MouseEvent("click")));
      const told = await page.evaluate(() => document.getElementById("detail").textContent);
      want(told.includes("linear"), `${scheme}: a kernel is not shown`);
      const steps = await page.evaluate(() => document.getElementById("plan").options.length);
      await page.select("#plan", String(steps - 1));
      const boxes = await page.evaluate(() => document.querySelectorAll(".box").length);
      want(boxes > 0, `${scheme}: the last step is empty`);
      await page.screenshot({ path: `${out}/${scheme}-last-step.png` });
    }
    await page.close();
  }
}
await browser.close();
wrong.forEach((what) => console.error(what));
console.log(wrong.length ? `${wrong.length} faults` : "the page is right");
process.exit(wrong.length ? 1 : 0);
