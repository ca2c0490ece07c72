/* Stands for PyTorch's libtorch_cpu.so: the one function at which every backward pass begins, by its name there. What it is given says what
 * is done inside; it may never come back. */
void _ZN5torch8autograd6Engine7executeERKSt6vectorINS0_4EdgeESaIS3_EERKS2_IN2at6TensorESaIS9_EEbbbS7_(void (*inside)(int), int depth)
{
    volatile char room[64] = { 0 };
    inside(depth);
    room[0] = 1; /* not called last, so that its frame is there meanwhile */
}
