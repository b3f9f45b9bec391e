const text = (tag, words, kind) => Object.assign(document.createElement(tag), { textContent: words, className: kind || '' });
fetch('openapi.json').then(answer => answer.json()).then(api => {
  const routes = document.getElementById('routes');
  routes.textContent = '';
  for (const [path, verbs] of Object.entries(api.paths)) {
    for (const [verb, operation] of Object.entries(verbs)) {
      const entry = document.createElement('details'), head = document.createElement('summary');
      head.append(text('span', verb, 'verb'), text('code', path), text('span', operation.summary, 'says'));
      entry.append(head, text('p', operation.description), text('pre', JSON.stringify(operation, null, 2)));
      routes.append(entry);
    }
  }
  routes.append(text('h2', 'Types'));
  for (const [name, schema] of Object.entries(api.components.schemas)) {
    const entry = document.createElement('details');
    entry.append(text('summary', name), text('pre', JSON.stringify(schema, null, 2)));
    routes.append(entry);
  }
}).catch(error => { document.getElementById('routes').textContent = 'openapi.json could not be read: ' + error; });
