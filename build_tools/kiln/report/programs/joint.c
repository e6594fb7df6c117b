/* joint.c: the smallest program that uses all models of a joint library; see model.c. JOINT_MODELS
 * lists them as M(name). */
#include JOINT_HEADER

/* The models, which may have names of local variables. */
#define M(name) static const kiln_model *const kiln_of_##name = &name;
JOINT_MODELS
#undef M

int main(int argc, char **argv) {
    static kiln_session session;
    kiln_config config = {.arena = argv[0], .arena_bytes = (size_t)argc};
    const DLTensor *tensors = (const DLTensor *)(const void *)argv[1];
    config.state = argv[2];
    config.state_bytes = (size_t)argc;
    config.params = argv[3];
    config.params_bytes = (size_t)argc;
#define M(name)                                                                                    \
    if (kiln_open(&session, kiln_of_##name, &config) != KILN_OK ||                                 \
        kiln_run(&session, tensors, tensors + 1) != KILN_OK)                                       \
        return 1;
    JOINT_MODELS
    return 0;
}
