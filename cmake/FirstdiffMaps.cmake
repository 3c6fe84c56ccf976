# cmake -DOUT=FILE.c "-DMAPS=a.map;b.map" -P FirstdiffMaps.cmake: the text of every map as a C array, and the lookup by name
# (fd_name_map_builtin, dumpers/import/map.h).
set(arrays "")
set(rows "")
foreach(map ${MAPS})
  get_filename_component(name ${map} NAME)
  string(REGEX REPLACE "\\.map$" "" name ${name})
  string(MAKE_C_IDENTIFIER ${name} id)
  file(READ ${map} hex HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
  string(APPEND arrays "static const unsigned char ${id}[] = {${bytes}};\n")
  string(APPEND rows "    {\"${name}\", ${id}, sizeof ${id}},\n")
endforeach()
file(WRITE ${OUT} "#include \"dumpers/import/map.h\"

#include <string.h>

${arrays}
static const struct {
    const char *name;
    const unsigned char *text;
    size_t size;
} maps[] = {
${rows}};

const char *fd_name_map_builtin(const char *name, size_t *size) {
    for (size_t i = 0; i < sizeof maps / sizeof *maps; i++) {
        if (strcmp(maps[i].name, name) != 0) continue;
        *size = maps[i].size;
        return (const char *)maps[i].text;
    }
    return NULL;
}
")
