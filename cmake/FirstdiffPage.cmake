# cmake -DOUT=FILE.c -DCSS=page.css "-DSCRIPTS=a.js;b.js" -P FirstdiffPage.cmake: the report page's style and script
# (fd_page_style, fd_page_script, compare/report/page.h) as C arrays.
function(bytes_of out)
  set(all "")
  foreach(file ${ARGN})
    file(READ ${file} hex HEX)
    string(APPEND all "${hex}")
  endforeach()
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," all "${all}")
  set(${out} "${all}0" PARENT_SCOPE)
endfunction()
bytes_of(style ${CSS})
bytes_of(script ${SCRIPTS})
file(WRITE ${OUT} "#include \"compare/report/page.h\"

static const unsigned char style[] = {${style}};
static const unsigned char script[] = {${script}};

const char *fd_page_style(void) {
    return (const char *)style;
}

const char *fd_page_script(void) {
    return (const char *)script;
}
")
