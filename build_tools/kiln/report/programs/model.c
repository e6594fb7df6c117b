/* model.c: the smallest program that uses a model; its size minus that of empty.c is the model's.
 * Arena and tensors are the caller's, so they come from the arguments of main and add nothing to
 * the size. */
#include KILN_HEADER

/* The model, which may have the name of a local variable. */
static const kiln_model *const kiln_this = &KILN_MODEL;

int main(int argc, char **argv) {
    static kiln_session session;
    kiln_config config = {.arena = argv[0], .arena_bytes = (size_t)argc};
    const DLTensor *tensors = (const DLTensor *)(const void *)argv[1];
    config.state = argv[2];
    config.state_bytes = (size_t)argc;
    config.params = argv[3];
    config.params_bytes = (size_t)argc;
    if (kiln_open(&session, kiln_this, &config) != KILN_OK)
        return 1;
    return kiln_run(&session, tensors, tensors + 1) != KILN_OK;
}
