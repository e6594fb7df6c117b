/* empty.c: a program without a model, whose size is subtracted from that of model.c. */
int main(int argc, char **argv) {
    return argc > 1 && argv[1][0] != 0;
}
