/* Stands for PyTorch's libtorch_cpu.so, by names there: the one function at which every backward pass begins, and the one at which every
 * stretch with a name does. What the first is given says what is done inside; it may never come back. The name is the first thing of what the
 * second one's second argument points to. */
void _ZN5torch8autograd6Engine7executeERKSt6vectorINS0_4EdgeESaIS3_EERKS2_IN2at6TensorESaIS9_EEbbbS7_(void (*inside)(int), int depth)
{
    volatile char room[64] = { 0 };
    inside(depth);
    room[0] = 1; /* not called last, so that its frame is there meanwhile */
}

void _ZN5torch8autograd8profiler25record_function_enter_newERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEERKSt8optionalIS7_E(void **result, const char **name)
{
    *result = (void *)*name;
}
