const text = (tag, words, kind) => Object.assign(document.createElement(tag), { textContent: words, className: kind || '' });
// It scrolls by itself, so the keyboard must reach it.
const block = value => Object.assign(text('pre', JSON.stringify(value, null, 2)), { tabIndex: 0 });
fetch('openapi.json').then(answer => answer.json()).then(api => {
  const routes = document.getElementById('routes');
  routes.textContent = '';
  for (const [path, verbs] of Object.entries(api.paths)) {
    for (const [verb, operation] of Object.entries(verbs)) {
      const entry = document.createElement('details'), head = document.createElement('summary');
      head.append(text('span', verb, 'verb'), text('code', path), text('span', operation.summary, 'says'));
      entry.append(head, text('p', operation.description), block(operation));
      routes.append(entry);
    }
  }
  routes.append(text('h2', 'Types'));
  for (const [name, schema] of Object.entries(api.components.schemas)) {
    const entry = document.createElement('details');
    entry.append(text('summary', name), block(schema));
    routes.append(entry);
  }
}).catch(error => { document.getElementById('routes').textContent = 'openapi.json could not be read: ' + error; });
