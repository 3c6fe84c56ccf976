#include "dumpers/hdf5/header.h"

enum { MAX_BLOCK = 65536, MAX_BLOCKS = 32 };

typedef struct block_list {
    uint64_t at[MAX_BLOCKS], size[MAX_BLOCKS];
    int n;
} block_list;

static bool take_continuation(block_list *blocks, fd_h5_cursor body) {
    if (blocks->n == MAX_BLOCKS) return false;
    blocks->at[blocks->n] = fd_h5_take(&body, 8);
    blocks->size[blocks->n++] = fd_h5_take(&body, 8);
    return !body.bad;
}

static bool take_messages(fd_h5_cursor c, int version, bool ordered, block_list *blocks, fd_h5_message_fn take,
                          void *user) {
    size_t head = version == 1 ? 8 : ordered ? 6 : 4;
    while (c.left >= head) { /* what is shorter is a gap */
        fd_h5_message m = {.type = fd_h5_take(&c, version == 1 ? 2 : 1)};
        uint64_t size = fd_h5_take(&c, 2);
        m.flags = fd_h5_take(&c, 1);
        fd_h5_skip(&c, head - (version == 1 ? 5 : 4));
        m.body = (fd_h5_cursor){fd_h5_skip(&c, (size_t)size), (size_t)size, false};
        if (!m.body.at) return false;
        if (!(m.type == FD_H5_MSG_CONTINUATION ? take_continuation(blocks, m.body) : take(&m, user))) return false;
    }
    return true;
}

/* Finds the messages of the header's first block, which is read into `long_block` where the window is too short. */
static bool first_block(const fd_h5_bytes *bytes, fd_h5_window *headers, uint64_t address, uint8_t *long_block,
                        fd_h5_cursor *messages, int *version, bool *ordered) {
    enum { PROBE = 512 }; /* most headers are shorter */
    if (address >= bytes->size) return false;
    size_t got = bytes->size - address < PROBE ? (size_t)(bytes->size - address) : PROBE;
    const uint8_t *block = fd_h5_window_get(bytes, headers, address, got);
    if (!block) return false;
    fd_h5_cursor c = {block, got, false};
    uint64_t size;
    if (block[0] == 1) {
        fd_h5_skip(&c, 8);
        size = fd_h5_take(&c, 4);
        fd_h5_skip(&c, 4);
        *version = 1;
        *ordered = false;
    } else {
        if (!fd_h5_expect(&c, "OHDR") || fd_h5_take(&c, 1) != 2) return false;
        uint64_t flags = fd_h5_take(&c, 1);
        if (flags & 0x20) fd_h5_skip(&c, 16); /* times */
        if (flags & 0x10) fd_h5_skip(&c, 4);  /* limits of attribute storage */
        size = fd_h5_take(&c, (size_t)1 << (flags & 3));
        *version = 2;
        *ordered = flags & 4;
    }
    size_t start = got - c.left;
    if (c.bad || size > MAX_BLOCK - 64 - start) return false;
    size_t whole = start + (size_t)size + (*version == 2 ? 4 : 0);
    if (whole > got) {
        if (!fd_h5_bytes_read(bytes, address, whole, long_block)) return false;
        block = long_block;
    }
    if (*version == 2 && !fd_h5_block_is_whole(block, whole)) return false;
    *messages = (fd_h5_cursor){block + start, (size_t)size, false};
    return true;
}

static bool next_block(const fd_h5_bytes *bytes, fd_h5_window *headers, uint64_t address, uint64_t size, int version,
                       uint8_t *long_block, fd_h5_cursor *messages) {
    if (size > MAX_BLOCK || (version == 2 && size < 8)) return false;
    const uint8_t *block = long_block;
    if (size <= FD_H5_WINDOW)
        block = fd_h5_window_get(bytes, headers, address, (size_t)size);
    else if (!fd_h5_bytes_read(bytes, address, (size_t)size, long_block))
        return false;
    if (!block) return false;
    *messages = (fd_h5_cursor){block, (size_t)size, false};
    if (version == 1) return true;
    if (!fd_h5_block_is_whole(block, (size_t)size) || !fd_h5_expect(messages, "OCHK")) return false;
    messages->left -= 4;
    return true;
}

bool fd_h5_header_walk(const fd_h5_bytes *bytes, fd_h5_window *headers, uint64_t address, fd_h5_message_fn take,
                       void *user) {
    uint8_t block[MAX_BLOCK];
    block_list blocks = {.n = 0};
    fd_h5_cursor messages;
    int version;
    bool ordered;
    if (!first_block(bytes, headers, address, block, &messages, &version, &ordered) ||
        !take_messages(messages, version, ordered, &blocks, take, user))
        return false;
    for (int i = 0; i < blocks.n; i++)
        if (!next_block(bytes, headers, blocks.at[i], blocks.size[i], version, block, &messages) ||
            !take_messages(messages, version, ordered, &blocks, take, user))
            return false;
    return true;
}
