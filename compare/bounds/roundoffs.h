/* Unit roundoffs and spacings of subnormals, of the classes and of element types. */
#ifndef FD_COMPARE_BOUNDS_ROUNDOFFS_H
#define FD_COMPARE_BOUNDS_ROUNDOFFS_H

#define U64   0x1p-53
#define U32   0x1p-24
#define UF16  0x1p-11
#define UBF16 0x1p-8
/* GPUs may flush binary32 subnormals, so anything below the smallest normal number may be 0. */
#define TINY32  0x1p-126
#define TINYF16 0x1p-24

#endif
