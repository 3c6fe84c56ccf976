#!/bin/bash -eu
# Builds the fuzz targets into $OUT, each with its seeds and the libraries that the machine that runs them does not have. OSS-Fuzz sets CC,
# CFLAGS, LIB_FUZZING_ENGINE, SRC, WORK and OUT; tests/fuzz/oss-fuzz/try sets them as it does.
formats="gguf h5 npy npz safetensors pickle map verdict prompts tokenizer"
build=$WORK/firstdiff
targets="fuzz_make_corpus fuzz_make_h5_corpus fuzz_make_import_corpus"
for format in $formats; do targets+=" fuzz_$format"; done

# AddressSanitizer's own leak check would follow HDF5's atexit; the flags of coverage come with CFLAGS.
cmake -G Ninja -S "$SRC/firstdiff" -B "$build" -DCMAKE_C_COMPILER="$CC" -DCMAKE_C_FLAGS="$CFLAGS -DFD_SANITIZED" \
    -DCMAKE_BUILD_TYPE=RelWithDebInfo -DFD_FUZZ=ON "-DFD_FUZZ_ENGINE=$LIB_FUZZING_ENGINE" -DFD_CUDA=OFF -DFD_BENCH=OFF -DFD_TESTS=OFF \
    -DCMAKE_BUILD_WITH_INSTALL_RPATH=ON "-DCMAKE_INSTALL_RPATH=\$ORIGIN/lib"
# shellcheck disable=SC2086
cmake --build "$build" --target $targets
"$SRC/firstdiff/tests/fuzz/seeds" "$build/tests/fuzz" "$WORK/seeds"
mkdir -p "$OUT/lib"
for format in $formats; do
    program=$build/tests/fuzz/fuzz_$format
    cp "$program" "$OUT/"
    ldd "$program" | awk '$3 ~ /^\// && $1 !~ /^(libc|libm|libdl|librt|libpthread|libgcc_s)\.so/ { print $3 }' | xargs -r cp -t "$OUT/lib"
    (cd "$WORK/seeds/$format" && zip -q "$OUT/fuzz_${format}_seed_corpus.zip" ./*)
done
cp "$SRC/firstdiff/tests/fuzz/gguf.dict" "$OUT/fuzz_gguf.dict"
