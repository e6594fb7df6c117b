/* The least that uses a model: what is measured is this program less one that does nothing.
 * Arena and tensors are the caller's in either case, so they come from outside and cost nothing
 * here. */
#include KILN_HEADER

int main(int argc, char **argv) {
    static kiln_session session;
    kiln_config config = {.arena = argv[0], .arena_bytes = (size_t)argc};
    const DLTensor *tensors = (const DLTensor *)(const void *)argv[1];
    config.params = argv[2];
    config.params_bytes = (size_t)argc;
    if (kiln_open(&session, &KILN_MODEL, &config) != KILN_OK)
        return 1;
    return kiln_run(&session, tensors, tensors + 1) != KILN_OK;
}
