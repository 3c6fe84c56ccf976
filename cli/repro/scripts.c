#include <string.h>

#include "cli/output.h"
#include "cli/repro/internal.h"

/* Each line of `sizes` with `between` in place of its space. */
static void put_sizes(FILE *to, const char *before, const char *between, const char *sizes) {
    for (const char *line = sizes; *line; line = strchr(line, '\n') + 1) {
        size_t name = strcspn(line, " "), size = strcspn(line, "\n");
        fprintf(to, "%s%.*s%s%.*s\n", before, (int)name, line, between, (int)(size - name - 1), line + name + 1);
    }
}

/* What the file is about. Names come from a model's file: nothing of them ends the comment. */
void fd_repro_put_title(FILE *to, const fd_repro *r, const char *line_break) {
    const fd_explanation *e = &r->verdict->diagnosis.explanation;
    for (const char *p = r->node->name; *p; p++)
        fputc(strchr("abcdefghijklmnopqrstuvwxyz0123456789._", *p) ? *p : '?', to);
    fprintf(to, " (%s) alone, at position %d, elements %lld to %lld", fd_op_name(r->node->op), r->pos,
            (long long)r->first, (long long)(r->first + r->n - 1));
    if (r->verdict->diagnosis.done && e->named)
        fprintf(to, ".%s%s (%s)", line_break, e->remaining[0].summary, e->remaining[0].name);
}

static fd_code write_python(const fd_repro *r, const fd_repro_op *op, fd_error *err) {
    char path[4096];
    FILE *to;
    FD_TRY(fd_repro_open(r, "test_op.py", &to, path, err));
    fputs("\"\"\"", to);
    fd_repro_put_title(to, r, "\n");
    fputs(".\n\npytest runs it; python test_op.py prints the values. Needs NumPy alone.\n\"\"\"\n\n"
          "from pathlib import Path\n\nimport numpy as np\n\n",
          to);
    put_sizes(to, "", " = ", r->sizes);
    fputs("\n\ndef load(name):\n    return np.load(Path(__file__).parent / f\"{name}.npy\").astype(\"f8\")\n\n\n"
          "def op():\n    \"\"\"The op as it should be.\"\"\"\n",
          to);
    fputs(op->python, to);
    fputs(
        "    return y\n\n\n"
        "def candidate():\n    \"\"\"What the engine computed. Put a call of your own kernel here, on the same "
        "arrays.\"\"\"\n"
        "    return load(\"candidate\")\n\n\n"
        "def beyond(values):\n    \"\"\"|values - expected| over what rounding allows; 1 and below is rounding.\"\"\"\n"
        "    expected = load(\"expected\")\n"
        "    with np.errstate(invalid=\"ignore\"):\n"
        "        distance = np.where(values == expected, 0, np.abs(values - expected))\n"
        "    return np.nan_to_num(distance / load(\"tau\"), nan=np.inf)\n\n\n"
        "def test_the_formula_gives_what_is_expected():\n    assert beyond(op()).max() <= 1\n\n\n"
        "def test_the_engine_computes_it():\n    assert beyond(candidate()).max() <= 1, np.stack([load(\"expected\"), "
        "candidate()])\n\n\n"
        "if __name__ == \"__main__\":\n"
        "    for row in zip(load(\"expected\"), op(), candidate(), beyond(candidate())):\n"
        "        print(\"expected %.9g  formula %.9g  engine %.9g  off by %.3g times what rounding allows\" % row)\n",
        to);
    return fd_cli_output_close(to, path, err);
}

/* A line for each of the names; `loads`: it is read, else declared. */
static void put_c_arrays(FILE *to, const char *names, bool loads) {
    for (const char *p = names; *p; p += strspn(p, " ")) {
        int n = (int)strcspn(p, " ");
        if (loads)
            fprintf(to, "    %.*s = load(\"%.*s\");\n", n, p, n, p);
        else
            fprintf(to, "static double *%.*s;\n", n, p);
        p += n;
    }
}

static fd_code write_c(const fd_repro *r, const fd_repro_op *op, fd_error *err) {
    char path[4096];
    FILE *to;
    FD_TRY(fd_repro_open(r, "op.c", &to, path, err));
    fputs("/* ", to);
    fd_repro_put_title(to, r, "\n");
    fputs(".\n *\n * cc op.c -lm -o op && ./op in this folder: status 1 while the engine's values are beyond rounding. "
          "*/\n"
          "#include <math.h>\n#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n\n",
          to);
    put_sizes(to, "#define ", " ", r->sizes);
    put_c_arrays(to, op->arrays, false);
    fputs("\n/* NAME.npy of float or double elements, as double. */\nstatic double *load(const char *name) {\n"
          "    char path[64], head[129] = {0};\n    snprintf(path, sizeof path, \"%s.npy\", name);\n"
          "    FILE *file = fopen(path, \"rb\");\n    if (!file || fread(head, 1, 128, file) != 128) exit(2);\n"
          "    int wide = strstr(head + 10, \"<f8\") != NULL;\n    long n = (fseek(file, 0, SEEK_END), ftell(file) - "
          "128) / "
          "(wide ? 8 : 4);\n    double *x = malloc(sizeof *x * (size_t)(n + 1));\n    if (!x) exit(2);\n"
          "    fseek(file, 128, SEEK_SET);\n    for (long i = 0; i < n; i++) {\n        float narrow = 0;\n"
          "        if (fread(wide ? (void *)&x[i] : (void *)&narrow, wide ? 8 : 4, 1, file) != 1) exit(2);\n"
          "        if (!wide) x[i] = narrow;\n    }\n    fclose(file);\n    return x;\n}\n\n"
          "/* The op as it should be; y [N]. Put a call of your own kernel here to test it. */\nstatic void op(double "
          "*y) "
          "{\n",
          to);
    fputs(op->c, to);
    fputs("}\n\nint main(void) {\n    double y[N], *expected = load(\"expected\"), *tau = load(\"tau\"), *candidate = "
          "load(\"candidate\");\n    int formula = 0, engine = 0;\n",
          to);
    put_c_arrays(to, op->arrays, true);
    fputs("    op(y);\n    for (int i = 0; i < N; i++) {\n"
          "        formula |= !(y[i] == expected[i] || fabs(y[i] - expected[i]) <= tau[i]);\n"
          "        engine |= !(candidate[i] == expected[i] || fabs(candidate[i] - expected[i]) <= tau[i]);\n"
          "        printf(\"expected %.9g  formula %.9g  engine %.9g\\n\", expected[i], y[i], candidate[i]);\n    }\n"
          "    printf(\"the formula is %s, the engine %s\\n\", formula ? \"WRONG\" : \"right\", engine ? \"WRONG\" : "
          "\"right\");\n    return formula ? 3 : engine;\n}\n",
          to);
    return fd_cli_output_close(to, path, err);
}

fd_code fd_repro_write_scripts(const fd_repro *repro, fd_error *err) {
    const fd_repro_op *op = fd_repro_op_of(repro->node->op);
    FD_TRY(write_python(repro, op, err));
    FD_TRY(write_c(repro, op, err));
    return fd_repro_write_backend_ops(repro, err);
}
