/* One page that needs nothing else: the verdict as text, a grid of layers by tensors coloured by finding, and for
 * each cell its z by position and by head. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "compare/report/report.h"

/* Text from files: nothing of it may become markup, in an element or in a quoted JavaScript string. */
static void put_text(FILE *to, const char *text) {
    fd_character c;
    for (const char *s = text, *end = text + strlen(text); s < end; s += c.n) {
        c = fd_text_next(s, (size_t)(end - s));
        if (*s == '&')
            fputs("&amp;", to);
        else if (*s == '<')
            fputs("&lt;", to);
        else if (*s == '>')
            fputs("&gt;", to);
        else
            c.shown ? fwrite(s, 1, c.n, to) : fwrite("?", 1, 1, to);
    }
}

static void put_string(FILE *to, const char *text) {
    fputc('"', to);
    for (const unsigned char *s = (const unsigned char *)text; *s; s++)
        if (*s < 0x20 || *s >= 0x7f || strchr("\"\\<>&'", *s))
            fprintf(to, "\\u%04x", *s < 0x80 ? *s : 0xfffd);
        else
            fputc(*s, to);
    fputc('"', to);
}

/* −1: not judged. JavaScript reads 1e999 as Infinity. */
static void put_z(FILE *to, float z) {
    if (z < 0)
        fputs("-1", to);
    else if (!isfinite(z))
        fputs("1e999", to);
    else
        fprintf(to, "%.3g", (double)z);
}

static void put_list(FILE *to, const float *z, int32_t n) {
    fputc('[', to);
    for (int32_t i = 0; i < n; i++) {
        if (i) fputc(',', to);
        put_z(to, z[i]);
    }
    fputc(']', to);
}

/* "blk.3.attn_q" in layer 3: "attn_q". */
static const char *suffix(const fd_verdict_cell *cell) {
    const char *dot = cell->layer < 0 ? NULL : strchr(cell->name, '.');
    dot = dot ? strchr(dot + 1, '.') : NULL;
    return dot ? dot + 1 : cell->name;
}

static void put_data(FILE *to, const fd_verdict *v) {
    const fd_verdict_map *m = &v->map;
    fputs("const nodes=[\n", to);
    for (int32_t i = 0; i < m->n_node; i++) {
        const fd_verdict_cell *c = &m->cells[i];
        fputs("{name:", to);
        put_string(to, c->name);
        fputs(",column:", to);
        put_string(to, suffix(c));
        fputs(",op:", to);
        put_string(to, c->op);
        fprintf(to, ",layer:%d,finding:", c->layer);
        put_string(to, c->finding);
        fputs(",z:", to);
        put_z(to, c->z);
        fputs(",pos:", to);
        put_list(to, m->by_pos + (int64_t)i * m->n_pos, m->n_pos);
        fputs(",head:", to);
        put_list(to, m->by_head + (int64_t)i * m->most_heads, c->n_head);
        fputs("},\n", to);
    }
    fputs("];\nconst first=", to);
    put_string(to, v->divergence.kind == FD_DIVERGED_VALUES ? v->divergence.node : "");
    fputs(";\n", to);
}

static const char head[] =
    "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>firstdiff</title>\n<style>\n"
    "body{font:14px/1.4 system-ui,sans-serif;margin:1.5em;color:#222;background:#fff}\n"
    "pre{background:#f6f6f6;padding:1em;overflow:auto}h1{font-size:1.2em}h2{font-size:1em}\n"
    "table{border-collapse:separate;border-spacing:2px}th{font-weight:normal;font-size:11px;color:#666}\n"
    "thead th{writing-mode:vertical-rl;transform:rotate(180deg);text-align:left;vertical-align:bottom}\n"
    "td{width:20px;height:20px;min-width:20px;padding:0}td button{width:20px;height:20px;border:0;padding:0;"
    "cursor:pointer;display:block}\n"
    "td button.first{outline:3px solid #000}td button:focus-visible{outline:2px solid #06c}\n"
    ".swatch{display:inline-block;width:12px;height:12px;margin:0 .3em 0 1em;vertical-align:-1px}\n"
    ".DIVERGED{color:#b00020}.IDENTICAL,.NOISE{color:#1b6e2a}.INCOMPLETE{color:#8a6100}\n"
    "</style></head><body>\n";

static const char script[] =
    "const colour=n=>n.z<0?'#ddd':({NOISE:n.z===0?'#cfe8d4':n.z<0.1?'#b5dcbd':'#93cb9f',INHERITED:'#f2d58a',"
    "AMPLIFIER:'#eba04a',INTRODUCED:'#c62839',BOTH:'#8e1b52'})[n.finding]||'#ddd';\n"
    "const show=z=>z<0?'not judged':z===Infinity?'inf':String(z);\n"
    "const el=(tag,parent,text)=>{const e=document.createElement(tag);if(text!==undefined)e.textContent=text;"
    "parent.appendChild(e);return e};\n"
    "function bars(parent,title,zs){if(!zs.length)return;el('h2',parent,title);\n"
    "const ns='http://www.w3.org/2000/svg',w=Math.max(4,Math.min(24,Math.floor(800/zs.length))),h=90;\n"
    "const svg=parent.appendChild(document.createElementNS(ns,'svg'));svg.setAttribute('width',w*zs.length);"
    "svg.setAttribute('height',h+2);\n"
    "zs.forEach((z,i)=>{const r=svg.appendChild(document.createElementNS(ns,'rect'));\n"
    "const t=z<=0?0.02:z===Infinity?1:Math.min(1,Math.max(0.04,(Math.log10(z)+3)/9));\n"
    "r.setAttribute('x',i*w);r.setAttribute('width',Math.max(1,w-1));r.setAttribute('y',h-t*h);"
    "r.setAttribute('height',t*h);r.setAttribute('fill',z<0?'#ddd':z<=1?'#93cb9f':'#c62839');\n"
    "const tip=document.createElementNS(ns,'title');tip.textContent=i+': z '+show(z);r.appendChild(tip)});\n"
    "const line=svg.appendChild(document.createElementNS(ns,'line'));const y=h-h/3;\n"
    "for(const[k,v]of[['x1',0],['x2',w*zs.length],['y1',y],['y2',y],['stroke','#666'],['stroke-dasharray','3 3']])"
    "line.setAttribute(k,v)}\n"
    "const detail=document.getElementById('detail');\n"
    "function open(n){detail.replaceChildren();el('h2',detail,n.name+'  ('+n.op+'): '+n.finding+', z '+show(n.z));\n"
    "bars(detail,'z by position (dashed: z = 1, where rounding ends)',n.pos);"
    "bars(detail,'z by head, worst position',n.head)}\n"
    "const columns=[...new Set(nodes.filter(n=>n.layer>=0).map(n=>n.column))];\n"
    "const grid=document.getElementById('grid');const hr=el('tr',el('thead',grid));el('th',hr,'');"
    "columns.forEach(c=>el('th',hr,c));\n"
    "const body=el('tbody',grid),rows=new Map();\n"
    "function cell(tr,n){const td=el('td',tr);if(!n)return;const b=el('button',td);b.style.background=colour(n);"
    "b.title=n.name+': '+n.finding+', z '+show(n.z);b.setAttribute('aria-label',b.title);"
    "if(n.name===first){b.className='first';}b.onclick=()=>open(n)}\n"
    "for(const n of nodes){if(n.layer<0)continue;if(!rows.has(n.layer))rows.set(n.layer,new Map());"
    "rows.get(n.layer).set(n.column,n)}\n"
    "for(const[layer,of]of rows){const tr=el('tr',body);el('th',tr,'layer '+layer);"
    "columns.forEach(c=>cell(tr,of.get(c)))}\n"
    "const outside=document.getElementById('outside');for(const n of nodes)if(n.layer<0){const tr=el('tr',outside);"
    "el('th',tr,n.name);cell(tr,n)}\n"
    "const start=nodes.find(n=>n.name===first);if(start)open(start);\n";

static void put_grid(FILE *to, const fd_verdict *v) {
    static const char *const legend[][2] = {{"#93cb9f", "noise"},     {"#f2d58a", "inherited"},
                                            {"#eba04a", "amplified"}, {"#c62839", "introduced"},
                                            {"#8e1b52", "both"},      {"#ddd", "not judged"}};
    fprintf(to, "<p>%d tensors at %d positions, each by its worst.", v->map.n_node, v->map.n_pos);
    for (size_t i = 0; i < sizeof legend / sizeof *legend; i++)
        fprintf(to, "<span class=\"swatch\" style=\"background:%s\"></span>%s", legend[i][0], legend[i][1]);
    fputs("</p>\n<table id=\"grid\"></table>\n<table id=\"outside\"></table>\n<div id=\"detail\"></div>\n<script>\n",
          to);
    put_data(to, v);
    fputs(script, to);
    fputs("</script>\n", to);
}

fd_code fd_report_html(FILE *to, const fd_verdict *v, fd_error *err) {
    static const char *const classes[] = {"IDENTICAL", "DIVERGED", "INCOMPLETE", "NOISE"};
    char *text = NULL, headline[1024];
    size_t size;
    FILE *report = open_memstream(&text, &size);
    if (!report) return fd_fail(err, FD_ERR_MEMORY, "HTML report: out of memory");
    fd_report_text(report, v, false);
    if (fclose(report) != 0) {
        free(text);
        return fd_fail(err, FD_ERR_MEMORY, "HTML report: out of memory");
    }
    fd_report_headline(v, headline, sizeof headline);
    fputs(head, to);
    fprintf(to, "<h1 class=\"%s\">", classes[v->status]);
    put_text(to, headline);
    fputs("</h1>\n", to);
    if (v->map.n_node)
        put_grid(to, v);
    else
        fputs(
            "<p>No op was replayed: every bit agrees, or no model was given, or the candidate holds no elements.</p>\n",
            to);
    fputs("<pre>", to);
    put_text(to, text);
    fputs("</pre>\n</body></html>\n", to);
    free(text);
    return ferror(to) ? fd_fail(err, FD_ERR_IO, "HTML report: writing failed") : FD_OK;
}
